"""The cluster of a `tf.distribute.cluster_resolver.ClusterResolver` that the user passes."""

from __future__ import annotations

from typing import Any

from tfdp.cluster.jobs import from_jobs
from tfdp.cluster.spec import Cluster

SOURCE = "cluster_resolver"


def from_resolver(resolver: Any) -> Cluster:
    """Returns the cluster that a resolver describes; one process if it describes none.

    Args:
      resolver: Has `cluster_spec()`, `task_type` and `task_id`, as TensorFlow's resolvers do. It is
        asked once: a later change of the cluster goes unseen.

    Raises:
      TypeError: `resolver` is not a resolver.
      ClusterError: Its jobs and task do not fit data-parallel training; see `jobs.from_jobs`.

    >>> import types
    >>> spec = types.SimpleNamespace(as_dict=lambda: {"worker": ["a:1", "b:1"]})
    >>> resolver = types.SimpleNamespace(cluster_spec=lambda: spec, task_type="worker", task_id=1)
    >>> print(from_resolver(resolver))
    rank 1 of 2 (cluster_resolver)
    """
    missing = [
        name for name in ("cluster_spec", "task_type", "task_id") if not hasattr(resolver, name)
    ]
    if missing:
        raise TypeError(
            "`cluster_resolver` must be a `tf.distribute.cluster_resolver.ClusterResolver`, but "
            f"received {resolver!r}, which has no {', '.join(f'`{name}`' for name in missing)}. "
            "Pass for example `SimpleClusterResolver(tf.train.ClusterSpec({'worker': [...]}), "
            "task_type='worker', task_id=0)`."
        )
    spec = resolver.cluster_spec()
    jobs = {} if spec is None else spec.as_dict()
    if not any(jobs.values()):
        return Cluster.single(SOURCE)
    return from_jobs(jobs, resolver.task_type, resolver.task_id, SOURCE)
