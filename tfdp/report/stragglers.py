"""Which rank comes last, and by how much.

Ranks wait for each other at the first bucket, and before it where the loss needs numbers of all of
them. All leave a sum together, so that the one that waits least arrived last. The differences need
no clock that the hosts share.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Mapping

from tfdp.report.files import steady
from tfdp.report.reading import Run

# A rank straggles that is late by this fraction of a step, in as many samples at least; and how
# often it is last, see `last_share`.
LATE_SHARE = 0.05
LEAST_SAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Wait:
    """How a rank waits for the others.

    Args:
        rank: its number.
        host: where it runs.
        wait_seconds: in a step, at the first bucket and before; the median over samples.
        late_seconds: by how much more the median of the other ranks waited, the median over
            samples; above 0 for a rank that comes late.
        times_last: in how many samples no rank waited less.
        samples: how many sampled steps all ranks have.
    """

    rank: int
    host: str
    wait_seconds: float
    late_seconds: float
    times_last: int
    samples: int


def waits(run: Run) -> tuple[Wait, ...]:
    """Every rank's waits, over the sampled steps that all ranks have; () if there are none.

    Example:
        >>> import pathlib
        >>> from tfdp.report.files import RankLog, Session
        >>> from tfdp.report.records import Start, Step
        >>> def log(rank, *waits):
        ...     steps = tuple(Step(0, n, 0, 1, 8, 1.0, first_bucket_wait_seconds=wait)
        ...                   for n, wait in enumerate(waits, 1))
        ...     return RankLog((Session(Start(0, rank, 2, "ab"[rank], 2), 0),), steps, (), ())
        >>> run = Run(pathlib.Path(), (log(0, 5.0, 6.0, 1.0), log(1, 1.0, 1.5, 1.5)), None, ())
        >>> last = straggler(waits(run))
        >>> last.host, last.times_last, last.samples, last.late_seconds
        ('b', 2, 3, 4.0)
    """
    measured = [_by_step(run, rank) for rank in range(len(run.ranks))]
    common = sorted(set(measured[0]).intersection(*measured[1:]))
    if len(measured) < 2 or not common:
        return ()
    late: list[list[float]] = [[] for _ in measured]
    last: collections.Counter[int] = collections.Counter()
    for step in common:
        waited = [of_rank[step] for of_rank in measured]
        last[waited.index(min(waited))] += 1
        for rank, own in enumerate(waited):
            others = waited[:rank] + waited[rank + 1 :]
            late[rank].append(statistics.median(others) - own)
    return tuple(
        Wait(
            rank=rank,
            host=run.ranks[rank].start.host,
            wait_seconds=statistics.median(of_rank[step] for step in common),
            late_seconds=statistics.median(late[rank]),
            times_last=last[rank],
            samples=len(common),
        )
        for rank, of_rank in enumerate(measured)
    )


def straggler(found: tuple[Wait, ...]) -> Wait | None:
    """The rank that came last most often; of equals the one that was later. None without waits.

    Example:
        >>> straggler(()) is None
        True
    """
    return max(found, key=lambda wait: (wait.times_last, wait.late_seconds), default=None)


def last_share(ranks: int) -> float:
    """In which part of the samples a straggler is last: half as often again as by chance.

    Two thirds at most, so that two slow ranks of many are found as well as one of two.

    Example:
        >>> last_share(2), last_share(6)
        (0.6666666666666666, 0.25)
    """
    return min(2 / 3, 1.5 / ranks)


def matters(found: tuple[Wait, ...], step_seconds: float) -> bool:
    """Whether the last rank holds up the others: by enough, and more often than by chance.

    Args:
        found: all ranks' waits.
        step_seconds: how long a step takes.

    Example:
        >>> def found(times_last):
        ...     return Wait(0, "a", 0.0, 0.1, times_last, 10), Wait(1, "a", 0.1, -0.1, 0, 10)
        >>> matters(found(7), 1.0), matters(found(6), 1.0), matters(found(7), 9.0)
        (True, False, False)
    """
    last = straggler(found)
    if last is None or last.samples < LEAST_SAMPLES:
        return False
    often = last.times_last / last.samples
    return last.late_seconds >= LATE_SHARE * step_seconds and often >= last_share(len(found))


def _by_step(run: Run, rank: int) -> Mapping[int, float]:
    return {
        step.step: (step.first_bucket_wait_seconds + (step.meeting_seconds or 0.0)) / step.steps
        for step in steady(run.ranks[rank])
        if step.first_bucket_wait_seconds is not None
    }
