"""The steps of a schedule as numbers: what the busiest rank and the busiest host send in each."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from tfdp.topology.costs import Move, operations, steps
from tfdp.topology.schedule import AllReduce, Schedule


@dataclasses.dataclass(frozen=True)
class Stride:
    """Steps that are alike, one after the other.

    Attributes:
      times: The number of these steps.
      inside_bytes: The most that a rank sends to ranks of its host, or receives from them.
      between_bytes: The most that a host sends to others, or receives from them.
      rank_bytes: The most that a rank sends and receives together.
      engine: Whether they belong to an all-reduce of the engine.
      is_inside: Whether ranks of a host talk to each other, of however few bytes.
      is_between: Whether hosts do.

    >>> Stride(3, 0.0, 8.0, 16.0, is_between=True).engine
    False
    """

    times: int
    inside_bytes: float
    between_bytes: float
    rank_bytes: float
    engine: bool = False
    is_inside: bool = False
    is_between: bool = False


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The steps of a schedule, and what its busiest ranks do in all of them.

    Attributes:
      strides: The steps in their order.
      operations: See :func:`tfdp.topology.costs.operations`.
      inside_bytes: The most that a rank sends within its host, or receives there, in all steps.
      between_bytes: The most that a host sends to others, or receives from them, in all steps.

    >>> from tfdp.topology.ring import Ring
    >>> pattern = pattern_of(Ring().schedule(4, range(4), 400), range(4), 400)
    >>> pattern.between_bytes, pattern.operations, len(pattern.strides)
    (600.0, 12, 1)
    """

    strides: tuple[Stride, ...]
    operations: int
    inside_bytes: float
    between_bytes: float

    def scaled(self, factor: float) -> Pattern:
        """Returns the pattern of a buffer that is `factor` times as large.

        >>> Pattern((Stride(1, 0.0, 8.0, 8.0),), 2, 0.0, 8.0).scaled(0.5).between_bytes
        4.0
        """
        strides = [
            dataclasses.replace(
                stride,
                inside_bytes=factor * stride.inside_bytes,
                between_bytes=factor * stride.between_bytes,
                rank_bytes=factor * stride.rank_bytes,
            )
            for stride in self.strides
        ]
        return Pattern(
            tuple(strides),
            self.operations,
            factor * self.inside_bytes,
            factor * self.between_bytes,
        )


def pattern_of(schedule: Schedule, hosts: Sequence[int], size_bytes: int) -> Pattern:
    """Returns what a schedule sends, counted from its transfers.

    Args:
      schedule: A schedule of any topology.
      hosts: For each rank the index of its host.
      size_bytes: The size of the buffer.
    """
    strides: list[Stride] = []
    inside, between = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for phase in schedule.phases:
        own = isinstance(phase, AllReduce)
        for moves in steps(Schedule((phase,), schedule.chunks), size_bytes):
            within, across, of_ranks = _counted(moves, hosts)
            inside.update(within)
            between.update(across)
            strides.append(
                Stride(
                    1,
                    _most(within),
                    _most(across),
                    _most(of_ranks),
                    own,
                    bool(within),
                    bool(across),
                )
            )
    return Pattern(joined(strides), operations(schedule), _most(inside), _most(between))


def joined(strides: Iterable[Stride]) -> tuple[Stride, ...]:
    """Returns the strides with neighbours that are alike as one.

    >>> joined([Stride(1, 0.0, 8.0, 8.0), Stride(2, 0.0, 8.0, 8.0)])
    (Stride(times=3, inside_bytes=0.0, between_bytes=8.0, rank_bytes=8.0, ...),)
    """
    result: list[Stride] = []
    for stride in strides:
        if result and dataclasses.replace(result[-1], times=stride.times) == stride:
            stride = dataclasses.replace(stride, times=stride.times + result.pop().times)
        result.append(stride)
    return tuple(result)


_Counts = Counter[tuple[str, int]]


def _counted(moves: list[Move], hosts: Sequence[int]) -> tuple[_Counts, _Counts, _Counts]:
    """Returns the bytes of each rank inside hosts, of each host between them, of each rank."""
    inside, between, of_ranks = _Counts(), _Counts(), _Counts()
    for move in moves:
        source, target = hosts[move.source], hosts[move.target]
        if source == target:
            inside["out", move.source] += move.size_bytes
            inside["in", move.target] += move.size_bytes
        else:
            between["out", source] += move.size_bytes
            between["in", target] += move.size_bytes
        for rank in (move.source, move.target):
            of_ranks["both", rank] += move.size_bytes
    return inside, between, of_ranks


def _most(counts: _Counts) -> float:
    return float(max(counts.values(), default=0))
