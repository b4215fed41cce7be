"""The search for the cluster that this process belongs to: Slurm, MPI, `TF_CONFIG`, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tfdp.cluster import mpi, slurm, tf_config
from tfdp.cluster.resolver import from_resolver
from tfdp.cluster.spec import Cluster


def detect(environ: Mapping[str, str] | None = None, resolver: Any = None) -> Cluster:
    """Returns the cluster of this process; one process where nothing describes a cluster.

    The first that is present of `resolver`, `TF_CONFIG`, MPI and Slurm decides. A source that is
    present but malformed is an error, and the next one is not asked.

    Args:
      environ: Environment variables; None for the process' own.
      resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, or None.

    Raises:
      ClusterError: The cluster's description is missing something or contradicts itself.
      TypeError: `resolver` is not a resolver.

    >>> print(detect({}))
    rank 0 of 1 (no cluster in the environment)
    >>> print(detect({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
    ...               "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}))
    rank 1 of 2 (Slurm (SLURM_PROCID))
    """
    if resolver is not None:
        return from_resolver(resolver)
    environ = os.environ if environ is None else environ
    for source in (tf_config, mpi, slurm):
        cluster = source.detect(environ)
        if cluster is not None:
            return cluster
    return Cluster.single()


def rank_in_environment(environ: Mapping[str, str] | None = None) -> int:
    """Returns the rank that `detect` finds, without asking mpi4py: any one rank may call it.

    Args:
      environ: Environment variables; None for the process' own.

    Raises:
      ClusterError: `TF_CONFIG` describes an impossible cluster, or the rank is no number.

    >>> rank_in_environment({"PMI_RANK": "1", "PMI_SIZE": "2"})
    1
    """
    environ = os.environ if environ is None else environ
    configured = tf_config.detect(environ)
    if configured is not None:
        return configured.rank
    for source in (mpi, slurm):
        rank = source.rank(environ)
        if rank is not None:
            return rank
    return 0
