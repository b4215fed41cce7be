"""The nesting of schedules: reduce inside groups, all-reduce between them, copy inside groups."""

import itertools
import math
from collections.abc import Sequence

from tfdp.topology.schedule import Schedule, Steps, Transfer, as_phases, side_by_side


def nest(groups: Sequence[Sequence[int]], inner: Sequence[Schedule], outer: Schedule) -> Schedule:
    """Returns a schedule that sums over all groups, by schedules inside groups and between them.

    1. Each group runs the reducing phases of its `inner` schedule. Then each chunk of the group's
       sum is complete at one rank of the group, its owner.
    2. The buffer is cut wherever a chunk of any group begins. For each piece its owners, one per
       group, run `outer`, all pieces at the same time. Groups of one size have the same cuts.
    3. Each group runs the copying phases of its `inner` schedule.

    Args:
      groups: The ranks of each group; rank i of a group's schedule is `group[i]`.
      inner: A schedule for each group, on as many ranks.
      outer: A schedule on as many ranks as there are groups.

    Raises:
      ValueError: A schedule is not made of exchanges, or an inner one does not reduce to owners.

    >>> from tfdp.topology.ring import Ring
    >>> ring = Ring().schedule(2, [0, 0], 0)
    >>> schedule = nest([(0, 1), (2, 3)], [ring, ring], ring)
    >>> [sorted((t.source, t.target) for t in phase.transfers) for phase in schedule.phases[:2]]
    [[(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (1, 3), (2, 0), (3, 1)]]
    """
    unit = math.lcm(*(schedule.chunks for schedule in inner))
    parts = [split(schedule, len(group)) for schedule, group in zip(inner, groups, strict=True)]
    scales = [unit // schedule.chunks * outer.chunks for schedule in inner]
    cuts = sorted({cut for s in scales for cut in range(0, unit * outer.chunks + 1, s)})
    between = [
        _placed(
            _steps(outer),
            [g[o[first // s]] for g, (_, o, _), s in zip(groups, parts, scales, strict=True)],
            first,
            (stop - first) // outer.chunks,
        )
        for first, stop in itertools.pairwise(cuts)
    ]
    zipped = list(zip(groups, parts, scales, strict=True))
    steps = [
        *side_by_side([_placed(reducing, group, 0, s) for group, (reducing, _, _), s in zipped]),
        *side_by_side(between),
        *side_by_side([_placed(copying, group, 0, s) for group, (_, _, copying), s in zipped]),
    ]
    return Schedule(as_phases(steps), unit * outer.chunks)


def split(schedule: Schedule, world_size: int) -> tuple[Steps, list[int], Steps]:
    """Splits a schedule: the reducing steps, each chunk's owner after them, and the copying steps.

    Raises:
      ValueError: The schedule is not made of exchanges that reduce each chunk to one rank, then
        copy.

    >>> from tfdp.topology.ring import Ring
    >>> reducing, owners, copying = split(Ring().schedule(3, [0, 0, 0], 0), 3)
    >>> len(reducing), owners, len(copying)
    (2, [0, 1, 2], 2)
    """
    steps = _steps(schedule)
    copies = [not any(transfer.reduce for transfer in step) for step in steps]
    cut = copies.index(True) if True in copies else len(steps)
    reducing, copying = steps[:cut], steps[cut:]
    # For each rank and chunk: the ranks, a bit for each, whose values are in the sum it holds.
    held = [[1 << rank] * schedule.chunks for rank in range(world_size)]
    everyone = (1 << world_size) - 1
    _follow(reducing, held)
    owners = [
        next((rank for rank in range(world_size) if held[rank][chunk] == everyone), -1)
        for chunk in range(schedule.chunks)
    ]
    known = [[int(owner == rank) for owner in owners] for rank in range(world_size)]
    _follow(copying, known)
    if any(t.reduce for step in copying for t in step) or not all(map(all, known)):
        raise ValueError(
            "A schedule inside a group must reduce each chunk to one rank and then copy it to the "
            f"others, but on {world_size} ranks this one does not. Use Ring(), HalvingDoubling(), "
            "Direct() or Tree()."
        )
    return reducing, owners, copying


def _follow(steps: Steps, held: list[list[int]]) -> None:
    for step in steps:
        arrivals = [(t, [held[t.source][chunk] for chunk in t.chunks]) for t in step]
        for transfer, values in arrivals:
            own = held[transfer.target]
            for chunk, value in zip(transfer.chunks, values, strict=True):
                own[chunk] = own[chunk] | value if transfer.reduce else value


def _steps(schedule: Schedule) -> Steps:
    if len(schedule.exchanges()) != len(schedule.phases):
        raise ValueError(
            "The schedules of groups must be made of exchanges, but received one with the engine's "
            "own all-reduce. Use Ring(), which is the same algorithm, in place of Native()."
        )
    return [list(phase.transfers) for phase in schedule.exchanges()]


def _placed(steps: Steps, ranks: Sequence[int], first: int, scale: int) -> Steps:
    """Returns the steps as run by `ranks`, each chunk as `scale` chunks from `first` on."""
    return [
        [
            Transfer(
                ranks[t.source],
                ranks[t.target],
                range(first + t.chunks.start * scale, first + t.chunks.stop * scale),
                t.reduce,
            )
            for t in step
        ]
        for step in steps
    ]
