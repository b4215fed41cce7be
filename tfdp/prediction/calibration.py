"""The links of a run, from the communication that it measured: the model, turned around."""

from __future__ import annotations

import dataclasses

from tfdp.prediction.cluster import Cluster
from tfdp.prediction.plans import Plan, predict
from tfdp.prediction.workload import Workload

_SLOWEST, _FASTEST = 1e4, 1e13  # bytes per second
_HALVINGS = 60


def calibrated(
    plan: Plan, work: Workload, cluster: Cluster, communication_seconds: float
) -> Cluster:
    """Returns the cluster with links by which `plan` takes the communication that was measured.

    The rate between hosts is sought, or inside where there is one host: the less, the longer the
    communication. Where even no time on the wire is too long, the engine's costs are scaled down.

    Args:
      plan: What the run was given.
      work: What a replica computed.
      cluster: The ranks; its links' latencies and costs are taken as they are.
      communication_seconds: The exposed communication of a step.

    >>> from tfdp.prediction.workload import Tensor
    >>> from tfdp.topology import Links
    >>> work = Workload((Tensor((6_250_000,)),), 0.0, 0.0)
    >>> found = calibrated(Plan("ring"), work, Cluster(4, 1, Links(0, 1e9, 0, 1e9)), 1.5)
    >>> round(found.links.bytes_per_second_between / 1e6)
    25
    """
    between = cluster.hosts > 1
    name = "bytes_per_second_between" if between else "bytes_per_second_inside"

    def with_rate(rate: float) -> Cluster:
        # Ranks of a host are at least as near.
        rates = {name: rate}
        if between:
            inside = cluster.links.bytes_per_second_inside
            rates["bytes_per_second_inside"] = max(rate, inside)
        return dataclasses.replace(cluster, links=dataclasses.replace(cluster.links, **rates))

    def takes(one: Cluster) -> float:
        found = predict(plan, work, one)
        return 0.0 if found is None else found.communication_seconds

    if takes(with_rate(_FASTEST)) >= communication_seconds:
        share = communication_seconds / max(takes(with_rate(_FASTEST)), 1e-12)
        links = with_rate(_FASTEST).links
        step = links.engine_step_seconds
        scaled = dataclasses.replace(
            links,
            latency_seconds_inside=share * links.latency_seconds_inside,
            latency_seconds_between=share * links.latency_seconds_between,
            operation_seconds=share * links.operation_seconds,
            engine_step_seconds=None if step is None else share * step,
            core_seconds_per_byte=share * links.core_seconds_per_byte,
        )
        return dataclasses.replace(cluster, links=scaled)
    low, high = _SLOWEST, _FASTEST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if takes(with_rate(middle)) > communication_seconds else (low, middle)
        )
    return with_rate(high)
