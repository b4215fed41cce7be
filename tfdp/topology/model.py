"""The cost model: how long a schedule takes on given links, and which topology is the fastest."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tfdp.topology.base import AllReduce, Schedule, Topology
from tfdp.topology.costs import Move, operations, steps
from tfdp.topology.direct import Direct
from tfdp.topology.halving_doubling import HalvingDoubling
from tfdp.topology.hierarchical import Hierarchical
from tfdp.topology.native import Native
from tfdp.topology.ring import Ring
from tfdp.topology.torus import Torus
from tfdp.topology.tree import Tree


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
        long as that of a transfer. The engine need not start an operation for each.

    >>> Links(1e-4, 1e9, 1e-3, 24e6).bytes_per_second_between
    24000000.0
    """

    latency_seconds_inside: float
    bytes_per_second_inside: float
    latency_seconds_between: float
    bytes_per_second_between: float
    operation_seconds: float = 0.0
    engine_step_seconds: float | None = None

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
      topology: The topology that is predicted to take the least time.
      seconds: The predicted time.
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
    """Predicts how long `schedule` takes.

    A step takes as long as its slowest link: the latency, and then the bytes of one direction at
    its rate. Steps wait for each other, nothing is pipelined, and adding is free. The time of the
    operations that the busiest rank starts is added.

    >>> links = Links(0, 1e9, 1e-3, 25e6)
    >>> schedule = Ring().schedule(4, range(4), 25_000_000)
    >>> round(predict_seconds(schedule, range(4), 25_000_000, links), 3)
    1.506
    """
    seconds = operations(schedule) * links.operation_seconds
    for phase in schedule.phases:
        own = links.engine_step_seconds if isinstance(phase, AllReduce) else None
        inside, between = (
            (links.latency_seconds_inside, links.latency_seconds_between)
            if own is None
            else (own, own)
        )
        phase_links = dataclasses.replace(
            links, latency_seconds_inside=inside, latency_seconds_between=between
        )
        alone = Schedule((phase,), schedule.chunks)
        seconds += sum(_step_seconds(m, hosts, phase_links) for m in steps(alone, size_bytes))
    return seconds


def candidates(hosts: Sequence[int]) -> tuple[Topology, ...]:
    """Returns the topologies that `choose` considers: hierarchies only where they have two levels.

    >>> len(candidates([0, 0])), len(candidates([0, 0, 1, 1]))
    (6, 14)
    """
    flat = (Native(), Direct(), HalvingDoubling(), Ring(), Torus(), Tree())
    if len(set(hosts)) in (1, len(hosts)):
        return flat
    return flat + tuple(
        Hierarchical(inner, outer)
        for inner in (Direct(), HalvingDoubling())
        for outer in (Direct(), HalvingDoubling(), Ring(), Tree())
    )


def choose(
    world_size: int,
    hosts: Sequence[int],
    size_bytes: int,
    links: Links,
    topologies: Sequence[Topology] | None = None,
) -> Choice:
    """Chooses the topology that is predicted to take the least time, the same on every rank.

    Args:
      world_size: The number of ranks.
      hosts: For each rank the index of its host.
      size_bytes: The size of the buffer.
      links: The links as measured; the same numbers on every rank.
      topologies: The topologies to choose from; None: `candidates`. Of equals the first is chosen.

    >>> slow = Links(1e-4, 1e9, 1e-3, 24e6)
    >>> choose(4, [0, 1, 0, 1], 25_000_000, slow, [Native(), Ring(), Hierarchical()]).table
    ((Hierarchical(inner=Direct(), outer=Ring()), 1.06...), (Ring(), 1.56...), (Native(), 3.13...))
    """
    considered = candidates(hosts) if topologies is None else topologies
    table = []
    for topology in considered:
        schedule = topology.schedule(world_size, hosts, size_bytes)
        table.append((topology, predict_seconds(schedule, hosts, size_bytes, links)))
    table.sort(key=lambda row: row[1])
    return Choice(*table[0], tuple(table))


def _step_seconds(moves: list[Move], hosts: Sequence[int], links: Links) -> float:
    inside, between = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for move in moves:
        source, target = hosts[move.source], hosts[move.target]
        if source == target:
            inside["out", move.source] += move.size_bytes
            inside["in", move.target] += move.size_bytes
        else:
            between["out", source] += move.size_bytes
            between["in", target] += move.size_bytes
    seconds = 0.0
    if inside:
        slowest = max(inside.values()) / links.bytes_per_second_inside
        seconds = links.latency_seconds_inside + slowest
    if between:
        slowest = max(between.values()) / links.bytes_per_second_between
        seconds = max(seconds, links.latency_seconds_between + slowest)
    return seconds
