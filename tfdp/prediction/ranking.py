"""The advice: plans by their predicted steps, and what limits the best of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from tfdp.prediction.cluster import Cluster
from tfdp.prediction.plans import Plan, Prediction, predict
from tfdp.prediction.workload import Workload

TOPOLOGIES = ("native", "direct", "halving_doubling", "torus", "tree", "hierarchical")
BUCKETS = (25 * 2**20, 2**20, 4 * 2**20, 100 * 2**20)

#: A plan is preferred to a simpler one where it is faster by this share of a step.
WORTH = 0.02


def candidates(
    base: Plan,
    topologies: Sequence[str] = TOPOLOGIES,
    bucket_bytes: Sequence[int] = BUCKETS,
    compressions: Sequence[str] = ("none", "bfloat16", "int8", "powersgd"),
    rounds: Sequence[int] = (10,),
) -> list[Plan]:
    """Returns plans in the order of how much they change: simpler ones first.

    Args:
      base: What all of them share: `shard` and `accumulation`.
      topologies: Names of topologies.
      bucket_bytes: Sizes of buckets.
      compressions: Names of compressions.
      rounds: The lengths of rounds of `LocalSGD`; empty for none.

    >>> len(candidates(Plan(), ["native", "tree"], [2**20], ["none", "int8"], []))
    4
    """
    summed = [
        dataclasses.replace(base, topology=topology, bucket_bytes=size, compression=compression)
        for compression, topology, size in itertools.product(compressions, topologies, bucket_bytes)
    ]
    apart = [
        dataclasses.replace(base, topology=topology, synchronization="local_sgd", every=every)
        for every, topology in itertools.product(rounds, topologies)
    ]
    return summed + apart


def ranked(plans: Iterable[Plan], work: Workload, cluster: Cluster) -> list[Prediction]:
    """Returns the predictions of all plans that can be told, the fastest first.

    Of plans within :data:`WORTH` of each other, the one that came first is taken to be faster.

    >>> from tfdp.prediction.workload import Tensor
    >>> from tfdp.topology import Links
    >>> work = Workload((Tensor((1000, 1000)),), 0.01, 0.02)
    >>> slow = Cluster(4, 2, Links(1e-4, 1e9, 1e-3, 25e6))
    >>> ranked(candidates(Plan(), rounds=[], compressions=["none"]), work, slow)[0].plan.topology
    'halving_doubling'
    """
    found = [p for plan in plans if (p := predict(plan, work, cluster)) is not None]
    order = {id(one): place for place, one in enumerate(found)}
    least = min((one.step_seconds for one in found), default=0.0)

    def key(one: Prediction) -> tuple[bool, float, int]:
        near = one.step_seconds <= (1 + WORTH) * least
        return not near, 0.0 if near else one.step_seconds, order[id(one)]

    return sorted(found, key=key)


def best(predictions: Sequence[Prediction], exact: bool = True) -> Prediction:
    """Returns the first prediction whose plan trains what one device trains; or the first of all.

    >>> from tfdp.prediction.workload import Tensor
    >>> from tfdp.topology import Links
    >>> work = Workload((Tensor((1000, 1000)),), 0.01, 0.02)
    >>> slow = Cluster(4, 1, Links(1e-4, 1e9, 1e-3, 25e6))
    >>> rows = ranked(candidates(Plan()), work, slow)
    >>> best(rows).plan.compression, best(rows, exact=False).plan.is_exact
    ('none', False)
    """
    return next((one for one in predictions if one.plan.is_exact or not exact), predictions[0])


@dataclasses.dataclass(frozen=True)
class Limit:
    """One thing that could be better, and the share of a step that it would take away.

    Attributes:
      name: What it is.
      gain: The share of a step's time.

    >>> Limit("links between hosts", 0.25).gain
    0.25
    """

    name: str
    gain: float


def limits(plan: Plan, work: Workload, cluster: Cluster) -> list[Limit]:
    """Returns what limits a plan, the most telling first: each thing is made twice as good.

    >>> from tfdp.prediction.workload import Tensor
    >>> from tfdp.topology import Links
    >>> work = Workload((Tensor((1000, 1000)),), 0.01, 0.02)
    >>> limits(Plan(), work, Cluster(4, 1, Links(1e-4, 1e9, 1e-3, 25e6)))[0].name
    'the rate of the links between hosts'
    """
    links = cluster.links
    step = links.engine_step_seconds
    changed: dict[str, tuple[Workload, Cluster]] = {}

    def with_links(**values: Any) -> tuple[Workload, Cluster]:
        return work, dataclasses.replace(cluster, links=dataclasses.replace(links, **values))

    changed["the rate of the links between hosts"] = with_links(
        bytes_per_second_between=2 * links.bytes_per_second_between
    )
    changed["the rate of the links inside a host"] = with_links(
        bytes_per_second_inside=2 * links.bytes_per_second_inside
    )
    changed["the latency of messages"] = with_links(
        latency_seconds_inside=links.latency_seconds_inside / 2,
        latency_seconds_between=links.latency_seconds_between / 2,
        operation_seconds=links.operation_seconds / 2,
        engine_step_seconds=None if step is None else step / 2,
    )
    changed["the cores that move the bytes"] = with_links(
        core_seconds_per_byte=links.core_seconds_per_byte / 2
    )
    changed["the forward and backward pass"] = (
        dataclasses.replace(
            work,
            forward_seconds=work.forward_seconds / 2,
            backward_seconds=work.backward_seconds / 2,
        ),
        cluster,
    )
    changed["ranks that are slower than others"] = (
        dataclasses.replace(work, deviation=work.deviation / 2),
        cluster,
    )
    changed["input, Keras and callbacks"] = (
        dataclasses.replace(work, other_seconds=work.other_seconds / 2),
        cluster,
    )
    now = predict(plan, work, cluster)
    if now is None or not now.step_seconds:
        return []
    found = []
    for name, (other_work, other_cluster) in changed.items():
        then = predict(plan, other_work, other_cluster)
        assert then is not None  # the same topology
        found.append(Limit(name, 1 - then.step_seconds / now.step_seconds))
    return sorted((one for one in found if one.gain > 0), key=lambda one: -one.gain)
