"""The links of a run, from the communication that it measured: the model, turned around."""

from __future__ import annotations

import dataclasses

from tfdp.tools.prediction.cluster_model import ClusterModel
from tfdp.tools.prediction.plans import Plan, predict
from tfdp.tools.prediction.workload import Workload

_SLOWEST, _FASTEST = 1e4, 1e13  # bytes per second
_HALVINGS = 60
# How well a sample tells the communication, as a share of its step.
_SHARE_OF_STEP = 0.01


def calibrated(
    plan: Plan, work: Workload, cluster: ClusterModel, communication_seconds: float
) -> tuple[ClusterModel, bool]:
    """Returns the cluster with links by which `plan` takes the communication that was measured.

    The rate between hosts is sought, or inside where there is one host: the less, the longer the
    communication. Where the backward pass hides it, or the engine's costs alone take as long, any
    fast link explains it: the slowest of them is returned.

    Args:
      plan: What the run was given.
      work: What a replica computed.
      cluster: The ranks; its links' latencies and costs are taken as they are.
      communication_seconds: The exposed communication of a step.

    Returns:
      The cluster, and whether its rate is the least that the links may have, and not theirs.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> from tfdp.topology import Links
    >>> work = Workload((GradientTensor((6_250_000,)),), 0.0, 0.0)
    >>> cluster = ClusterModel(4, 1, Links(0, 1e9, 0, 1e9))
    >>> found, least = calibrated(Plan("ring"), work, cluster, 1.5)
    >>> round(found.links.bytes_per_second_between / 1e6), least
    (25, False)
    """
    between = cluster.hosts > 1
    name = "bytes_per_second_between" if between else "bytes_per_second_inside"

    def with_rate(rate: float) -> ClusterModel:
        # Ranks of a host are at least as near.
        rates = {name: rate}
        if between:
            inside = cluster.links.bytes_per_second_inside
            rates["bytes_per_second_inside"] = max(rate, inside)
        return dataclasses.replace(cluster, links=dataclasses.replace(cluster.links, **rates))

    def takes(rate: float) -> float:
        return predict(plan, work, with_rate(rate)).communication_seconds

    step = work.compute_seconds + work.update_seconds + work.other_seconds + communication_seconds
    told = takes(_FASTEST) + _SHARE_OF_STEP * step
    sought = max(communication_seconds, told)
    low, high = _SLOWEST, _FASTEST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if takes(middle) > sought else (low, middle)
    return with_rate(high), communication_seconds < told
