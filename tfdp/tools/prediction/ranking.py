"""The advice: plans by their predicted steps, what limits the best of them, and both in words."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfdp.base.bucketing import DEFAULT_BYTES
from tfdp.tools.prediction.cluster_model import ClusterModel
from tfdp.tools.prediction.plans import Plan, Prediction, predict
from tfdp.tools.prediction.sending import COMPRESSIONS, CompressionCost
from tfdp.tools.prediction.workload import Workload

#: Simpler ones first; "auto" measures the links for a while when it starts.
TOPOLOGIES = (
    "native",
    "direct",
    "halving_doubling",
    "torus",
    "tree",
    "hierarchical",
    "ring",
    "auto",
)
BUCKETS = (DEFAULT_BYTES, 2**20, 4 * 2**20, 100 * 2**20)
ROUNDS = (10, 100)

#: A plan is preferred to a simpler one where it is faster by this share of a step.
WORTH = 0.02

# Advice is given for what takes away this share of a step.
_WORTH_SAYING = 0.05


def candidates(
    base: Plan,
    topologies: Sequence[str] = TOPOLOGIES,
    bucket_bytes: Sequence[int] = BUCKETS,
    compressions: Sequence[str] = ("none", "bfloat16", "int8", "powersgd"),
    rounds: Sequence[int] = ROUNDS,
    normalizes: bool = False,
    drops: bool = False,
) -> list[Plan]:
    """Returns plans in the order of how much they change: simpler ones first.

    Args:
      base: What all of them share: `shard` and `accumulation`. With `shard` there is neither a
        choice of topologies nor of rounds: the strategy sends halves of sums. Of compressions
        those are left that sum parts.
      topologies: Names of topologies.
      bucket_bytes: Sizes of buckets.
      compressions: Names of compressions.
      rounds: The lengths of rounds of `LocalSGD`, beside which gradients may be delayed by a step;
        empty for no synchronization.
      normalizes: Whether plain BatchNormalization may have a replica's own statistics, too.
      drops: Whether updates may do without the rank that is last.

    >>> len(candidates(Plan(), ["native", "tree"], [2**20], ["none", "int8"], []))
    4
    >>> len(candidates(Plan(), ["native", "tree"], [2**20], ["none", "int8"], [], normalizes=True))
    6
    >>> len(candidates(Plan(shard="optimizer"), compressions=["none", "int8", "powersgd"]))
    8

    Raises:
      ValueError: No compression is left.
    """
    if base.shard != "none":
        left = [name for name in compressions if COMPRESSIONS[name].sums_parts]
        if not left:
            known = [name for name, each in COMPRESSIONS.items() if each.sums_parts]
            raise ValueError(
                f"A compression beside `shard` must be one of {', '.join(known)}, which sum parts "
                f"of gradients, but received {', '.join(map(repr, compressions))}. Use "
                f"{known[1]!r}, or leave `shard` out."
            )
        topologies, compressions, rounds = topologies[:1], left, ()
    summed = [
        dataclasses.replace(base, topology=topology, bucket_bytes=size, compression=compression)
        for compression, topology, size in itertools.product(compressions, topologies, bucket_bytes)
    ]
    apart = [
        dataclasses.replace(
            base,
            topology=topology,
            compression="none",
            synchronization="local_sgd",
            every=every,
        )
        for every, topology in itertools.product(rounds, topologies)
    ]
    apart += [
        dataclasses.replace(
            base, topology="native", compression="none", synchronization="asynchronous", every=every
        )
        for every in rounds
    ]
    delayed = [
        dataclasses.replace(base, topology=topology, compression="none", synchronization="delayed")
        for topology in (topologies if rounds else ())
    ]
    own = [
        dataclasses.replace(plan, batch_normalization="per_replica")
        for plan in summed
        if normalizes and plan.is_exact
    ]
    dropped = dataclasses.replace(base, compression="none", synchronization="backup")
    without = [dropped] if drops and base.shard == "none" and base.accumulation == 1 else []
    return summed + own + delayed + apart + without


def ranked(plans: Iterable[Plan], work: Workload, cluster: ClusterModel) -> list[Prediction]:
    """Returns the predictions of plans: those that are exact, then the others.

    In each part the fastest comes first, by examples that count. Of the plans within :data:`WORTH`
    of that, the one that was given first is taken to be faster.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> from tfdp.topology import Links
    >>> work = Workload((GradientTensor((1000, 1000)),), 0.01, 0.02)
    >>> slow = ClusterModel(4, 2, Links(1e-4, 1e9, 1e-3, 25e6))
    >>> ranked(candidates(Plan(), rounds=[], compressions=["none"]), work, slow)[0].plan.topology
    'halving_doubling'
    """
    found = [predict(plan, work, cluster) for plan in plans]
    least = {
        exact: min((_pace(one) for one in found if one.plan.is_exact == exact), default=0.0)
        for exact in (True, False)
    }

    def key(one: Prediction) -> tuple[bool, float]:
        near = _pace(one) <= (1 + WORTH) * least[one.plan.is_exact]
        return not one.plan.is_exact, 0.0 if near else _pace(one)

    return sorted(found, key=key)  # which keeps the order of equals


def _pace(one: Prediction) -> float:
    """Returns the seconds for each example that counts: some plans drop some."""
    return one.step_seconds / one.examples


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


def limits(plan: Plan, work: Workload, cluster: ClusterModel) -> list[Limit]:
    """Returns what limits a plan, the most telling first: each thing is made twice as good.

    >>> from tfdp.tools.prediction.workload import GradientTensor
    >>> from tfdp.topology import Links
    >>> work = Workload((GradientTensor((1000, 1000)),), 0.01, 0.02)
    >>> limits(Plan(), work, ClusterModel(4, 1, Links(1e-4, 1e9, 1e-3, 25e6)))[0].name
    'the rate of the links between hosts'
    """
    links = cluster.links
    step = links.engine_step_seconds
    changed: dict[str, tuple[Workload, ClusterModel, CompressionCost]] = {}
    compression = COMPRESSIONS[plan.compression]

    def with_links(**values: Any) -> tuple[Workload, ClusterModel, CompressionCost]:
        better = dataclasses.replace(cluster, links=dataclasses.replace(links, **values))
        return work, better, compression

    def with_work(**values: Any) -> tuple[Workload, ClusterModel, CompressionCost]:
        return dataclasses.replace(work, **values), cluster, compression

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
    changed["the forward and backward pass"] = with_work(
        forward_seconds=work.forward_seconds / 2, backward_seconds=work.backward_seconds / 2
    )
    changed["ranks that are slower than others"] = with_work(deviation=work.deviation / 2)
    changed["the optimizer's update"] = with_work(update_seconds=work.update_seconds / 2)
    changed["input, Keras and callbacks"] = with_work(other_seconds=work.other_seconds / 2)
    rate = compression.gigabytes_per_second
    if rate is not None:
        faster = dataclasses.replace(compression, gigabytes_per_second=2 * rate)
        changed["the rate of the compression"] = work, cluster, faster
    now = predict(plan, work, cluster)
    if not now.step_seconds:
        return []
    found = [
        Limit(name, 1 - predict(plan, *better).step_seconds / now.step_seconds)
        for name, better in changed.items()
    ]
    return sorted((one for one in found if one.gain > 0), key=lambda one: -one.gain)


def plans_in_words(now: Plan, work: Workload, cluster: ClusterModel) -> Iterator[str]:
    """Yields what to try next: arguments that are predicted to be faster, and by how much.

    First what trains the same, then what changes the training, then a larger window of
    accumulation, then what limits the step.

    Args:
      now: The plan that is used.
      work: What a replica computes.
      cluster: The ranks and links.

    >>> from tfdp.tools.prediction.workload import even_tensors
    >>> from tfdp.topology import Links
    >>> slow = ClusterModel(4, 2, Links(1e-4, 1e9, 1e-3, 25e6))
    >>> for sentence in plans_in_words(Plan(), Workload(even_tensors(10**6), 0.1, 0.2), slow):
    ...     print(sentence)
    Predicted to be faster, training the same: `...`, by 30% of a step.
    Faster still, but other training: `...Delayed())`, by 38% of a step.
    Send once for several batches: `gradient_accumulation_steps=4` of the optimizer, by ...
    What limits a step most is the forward and backward pass: twice as good, it would ...
    """
    current = predict(now, work, cluster)
    rows = ranked(
        candidates(now, normalizes=any(layer.is_plain for layer in work.normalized)), work, cluster
    )
    least = current.step_seconds
    for exact, words in (
        (True, "Predicted to be faster, training the same"),
        (False, "Faster still, but other training"),
    ):
        one = next((row for row in rows if row.plan.is_exact == exact), current)
        gain = (least - one.step_seconds) / current.step_seconds
        if gain > _WORTH_SAYING:
            total = 1 - one.step_seconds / current.step_seconds
            yield f"{words}: `{one.plan.written()}`, by {100 * total:.0f}% of a step."
            least = one.step_seconds
    window = dataclasses.replace(now, accumulation=4 * now.accumulation)
    gain = 1 - predict(window, work, cluster).step_seconds / current.step_seconds
    if gain > _WORTH_SAYING:
        yield (
            f"Send once for several batches: `gradient_accumulation_steps={window.accumulation}` "
            f"of the optimizer, by {100 * gain:.0f}% of a step. A larger global batch does the "
            "same; `tfdp.optimizers.LAMB` or `LARS` keep it accurate."
        )
    found = limits(now, work, cluster)
    if found:
        yield (
            f"What limits a step most is {found[0].name}: twice as good, it would take "
            f"{100 * found[0].gain:.0f}% off."
        )
