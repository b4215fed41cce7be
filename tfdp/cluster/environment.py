"""The search for the cluster that this process belongs to, and for its place on its host."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tfdp.base import gpus
from tfdp.cluster import mpi, slurm, tf_config
from tfdp.cluster.environment_variables import integer
from tfdp.cluster.rank_status import STATUS_VARIABLE
from tfdp.cluster.spec import Cluster

T = TypeVar("T")

_OF_MPI = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


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
        return tf_config.from_resolver(resolver)
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


def local_rank(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the local rank and how many ranks this host has; None where nobody tells.

    Known are MPI's launchers and Slurm's `srun`. Under `tfdp run`, which has shared out the host
    itself, there is none.

    Raises:
      ClusterError: A variable is malformed.

    >>> local_rank({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    (1, 4)
    >>> local_rank({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
    ...             "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})
    (1, 3)
    """
    if environ.get(STATUS_VARIABLE):
        return None
    for rank, size in _OF_MPI:
        if environ.get(rank) and environ.get(size):
            return integer(environ, rank), integer(environ, size, at_least=1)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if not (slurm.in_step(environ) and environ.get("SLURM_LOCALID") and tasks):
        return None
    counts: list[int] = []
    for count, nodes in _TASKS.findall(tasks):
        counts += [int(count)] * int(nodes or 1)
    node = integer(environ, "SLURM_NODEID") if environ.get("SLURM_NODEID") else 0
    return (integer(environ, "SLURM_LOCALID"), counts[node]) if node < len(counts) else None


def own_gpus(present: Sequence[T], environ: Mapping[str, str]) -> list[T] | None:
    """Returns this process' share of the GPUs that all ranks of its host see; None: all are its.

    MPI and Slurm's `srun` start several ranks on a host. Whoever has chosen the GPUs of a rank by
    `CUDA_VISIBLE_DEVICES`, a scheduler or a user, is followed, unless that has all GPUs of Slurm's
    step.

    Args:
      present: The GPUs that CUDA shows to the process.
      environ: The environment of the process.

    >>> two = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    >>> own_gpus([0, 1, 2, 3], two), own_gpus([0], two)
    ([2, 3], None)
    >>> own_gpus([0, 1], {**two, "CUDA_VISIBLE_DEVICES": "4,5"})
    """
    place = local_rank(environ)
    if place is None or not 1 < place[1] <= len(present):
        return None
    of_step = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    all_of_step = of_step is not None and len(of_step.split(",")) == len(present)
    if gpus.VISIBLE in environ and not all_of_step:
        return None
    return gpus.share(present, *place)
