"""The cost model: how long a schedule takes on given links, and which topology is the fastest."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.native import Native
from tfdp.topology.patterns import Pattern, Stride, pattern_of
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Schedule, Topology, slice_count
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree

# Predictions that differ by less than this factor do not tell which topology is faster.
_NEARLY = 1.02


@dataclasses.dataclass(frozen=True)
class Links:
    """The links that join the ranks.

    Attributes:
      latency_seconds_inside: The time from a send to its receive, for no bytes, between ranks of
        one host.
      bytes_per_second_inside: The rate at which a rank sends to, and at the same time receives
        from, ranks of its host.
      latency_seconds_between: The same time as inside, between ranks of two hosts.
      bytes_per_second_between: The rate at which a host sends to, and at the same time receives
        from, all others. Its ranks share this rate.
      operation_seconds: The time that a rank spends on starting one operation: a send, a receive or
        an all-reduce of the engine. This time dominates many small steps.
      engine_step_seconds: The time that a step of the engine's own all-reduce takes for no bytes,
        as the engine need not start an operation for each; None: as long as that of a transfer.
      core_seconds_per_byte: The time that a rank's core spends on a byte that it sends or receives,
        where the rates of the links do not hold it already.

    >>> Links(1e-4, 1e9, 1e-3, 24e6).bytes_per_second_between
    24000000.0
    """

    latency_seconds_inside: float
    bytes_per_second_inside: float
    latency_seconds_between: float
    bytes_per_second_between: float
    operation_seconds: float = 0.0
    engine_step_seconds: float | None = None
    core_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            rate = field.name.startswith("bytes_per_second")
            if not math.isfinite(value) or value < 0 or (rate and value == 0):
                raise ValueError(
                    f"`{field.name}` must be {'above 0' if rate else '0 or more'} and finite, but "
                    f"received {value!r}. Give what was measured, in "
                    f"{'bytes per second' if rate else 'seconds'}."
                )


class Choice(NamedTuple):
    """A chosen topology.

    Attributes:
      topology: The topology that is predicted to take the least time, or nearly.
      seconds: Its predicted time.
      table: All topologies that were considered, with their seconds, the fastest first.

    >>> choice = choose(2, [0, 0], 1024, Links(1e-4, 1e9, 1e-3, 24e6))
    >>> isinstance(choice, Choice), choice.topology
    (True, Native())
    """

    topology: Topology
    seconds: float
    table: tuple[tuple[Topology, float], ...]


def predict_seconds(
    schedule: Schedule, hosts: Sequence[int], size_bytes: int, links: Links
) -> float:
    """Predicts how long `schedule` takes; see :func:`seconds_of`.

    >>> links = Links(0, 1e9, 1e-3, 25e6)
    >>> schedule = Ring().schedule(4, range(4), 25_000_000)
    >>> round(predict_seconds(schedule, range(4), 25_000_000, links), 3)
    1.506
    """
    return seconds_of(pattern_of(schedule, hosts, size_bytes), size_bytes, links)


def seconds_of(pattern: Pattern, size_bytes: float, links: Links) -> float:
    """Predicts how long the sum of one buffer takes.

    A step takes as long as its slowest link: the latency, and then the bytes of one direction at
    its rate; and as long as the busiest rank's core needs for them. Adding is part of the latter.
    The k slices of a large buffer follow each other through the steps (the engine's own ring has
    two; see :mod:`tfdp.topology.schedule`): of the steps' bytes each slice waits for a k-th, and
    for the rest the slowest of links and cores is busy all the time (`busy_seconds`). The time of
    the operations that the busiest rank starts for the first slice is added.

    >>> from tfdp.topology.tree import Tree
    >>> links, size = Links(0, 1e9, 0, 25e6), 25_000_000
    >>> pattern = pattern_of(Tree().schedule(4, range(4), size), range(4), size)
    >>> round(seconds_of(pattern, size, links), 3)  # one after the other the steps take 3 s
    1.875
    """
    slices = 2 if _is_engine(pattern) else slice_count(size_bytes)
    latency = moving = 0.0
    for stride in pattern.strides:
        latency += stride.times * _latency(stride, links)
        moving += stride.times * max(
            stride.inside_bytes / links.bytes_per_second_inside,
            stride.between_bytes / links.bytes_per_second_between,
            stride.rank_bytes * links.core_seconds_per_byte,
        )
    busiest = busy_seconds(pattern, size_bytes, links)
    moving = moving / slices + (1 - 1 / slices) * busiest
    return latency + moving + pattern.operations * links.operation_seconds


def busy_seconds(pattern: Pattern, size_bytes: float, links: Links) -> float:
    """Returns how long the busiest link, or the busiest rank's core, works for the sum of a buffer.

    A core moves the bytes, and starts the operations of each slice. No two sums can share this
    time; what a sum takes beyond it is waiting.

    >>> links, size = Links(0, 1e9, 0, 25e6, operation_seconds=0.01), 25_000_000
    >>> pattern = pattern_of(Ring().schedule(4, range(4), size), range(4), size)
    >>> busy_seconds(pattern, size, links)
    1.5
    """
    core = sum(stride.times * stride.rank_bytes for stride in pattern.strides)
    started = pattern.operations * (1 if _is_engine(pattern) else slice_count(size_bytes))
    return max(
        pattern.inside_bytes / links.bytes_per_second_inside,
        pattern.between_bytes / links.bytes_per_second_between,
        core * links.core_seconds_per_byte + started * links.operation_seconds,
    )


def candidates(hosts: Sequence[int]) -> tuple[Topology, ...]:
    """Returns the topologies that `choose` considers: hierarchies first, if they have two levels.

    >>> len(candidates([0, 0])), len(candidates([0, 0, 1, 1]))
    (6, 14)
    """
    flat = (Native(), Direct(), HalvingDoubling(), Ring(), Torus(), Tree())
    if len(set(hosts)) in (1, len(hosts)):
        return flat
    hierarchies = tuple(
        Hierarchical(inner, outer)
        for inner in (Direct(), HalvingDoubling())
        for outer in (Ring(), Direct(), HalvingDoubling(), Tree())
    )
    return hierarchies + flat


def choose(
    world_size: int,
    hosts: Sequence[int],
    size_bytes: int,
    links: Links,
    topologies: Sequence[Topology] | None = None,
) -> Choice:
    """Chooses the topology that is predicted to take the least time, the same on every rank.

    Of those that are predicted to take at most 2 % longer than that, it is the first.

    Args:
      world_size: The number of ranks.
      hosts: For each rank the index of its host.
      size_bytes: The size of the buffer.
      links: The links as measured; the same numbers on every rank.
      topologies: The topologies to choose from; None: `candidates`.

    >>> slow = Links(1e-4, 1e9, 1e-3, 24e6)
    >>> choose(4, [0, 1, 0, 1], 25_000_000, slow, [Native(), Ring(), Hierarchical()]).table
    ((Hierarchical(inner=Direct(), outer=Ring()), 1.05...), (Ring(), 1.56...), (Native(), 3.13...))
    """
    considered = candidates(hosts) if topologies is None else topologies
    table = []
    for topology in considered:
        schedule = topology.schedule(world_size, hosts, size_bytes)
        table.append((topology, predict_seconds(schedule, hosts, size_bytes, links)))
    return Choice(*nearly_fastest(table), tuple(sorted(table, key=lambda row: row[1])))


def nearly_fastest(predicted: Sequence[tuple[Topology, float]]) -> tuple[Topology, float]:
    """Returns the first topology whose predicted seconds are nearly the least, with them.

    Microseconds of an operation, as they were measured, would decide otherwise.

    >>> nearly_fastest([(Ring(), 1.5), (HalvingDoubling(), 1.0001), (Tree(), 1.0)])
    (HalvingDoubling(), 1.0001)
    """
    least = min(seconds for _, seconds in predicted)
    return next(row for row in predicted if row[1] <= _NEARLY * least)


def _is_engine(pattern: Pattern) -> bool:
    return all(stride.engine for stride in pattern.strides)


def _latency(stride: Stride, links: Links) -> float:
    if stride.engine and links.engine_step_seconds is not None:
        return links.engine_step_seconds
    inside = links.latency_seconds_inside if stride.is_inside else 0.0
    return max(inside, links.latency_seconds_between if stride.is_between else 0.0)
