"""The ranks that come last, and by how much: the rule of `base.stragglers`, over a whole run."""

import dataclasses
import statistics
from collections.abc import Mapping

from tfdp.base.stragglers import arrivals
from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.rank_log import steady
from tfdp.tools.report.summary import headline


@dataclasses.dataclass(frozen=True)
class Wait:
    """The waits of one rank for the others.

    Args:
      rank: The rank.
      host: The name of its host.
      wait_seconds: The wait in a step, at the first bucket and before; the median over samples.
      late_seconds: How much longer the median of the other ranks waited, as the median over
        samples; above 0 for a rank that comes late.
      times_last: The number of samples in which no rank waited less.
      samples: The number of sampled steps that all ranks have.
      straggles: Whether the others wait for the rank, see :func:`tfdp.base.stragglers.arrivals`.
    """

    rank: int
    host: str
    wait_seconds: float
    late_seconds: float
    times_last: int
    samples: int
    straggles: bool = False


def waits(run: LoggedRun) -> tuple[Wait, ...]:
    """Returns every rank's waits over the sampled steps that all ranks have; () without any.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import RankLog, Session
    >>> from tfdp.base.log_lines import StartLine, StepLine
    >>> def log(rank, *waits):
    ...     steps = tuple(StepLine(0, n, 0, 1, 8, 1.0, first_bucket_wait_seconds=wait)
    ...                   for n, wait in enumerate(waits, 1))
    ...     return RankLog((Session(StartLine(0, rank, 2, "ab"[rank], 2), 0),), steps, (), ())
    >>> run = LoggedRun(pathlib.Path(), (log(0, 5.0, 6.0, 1.0), log(1, 1.0, 1.5, 1.5)), None, ())
    >>> last = straggler(waits(run))
    >>> last.host, last.times_last, last.samples, last.late_seconds
    ('b', 2, 3, 4.0)
    """
    measured = [_by_step(run, rank) for rank in range(len(run.ranks))]
    common = sorted(set(measured[0]).intersection(*measured[1:]))
    rows = [[of_rank[step] for step in common] for of_rank in measured]
    return tuple(
        Wait(
            rank=found.rank,
            host=run.ranks[found.rank].start.host,
            wait_seconds=statistics.median(row),
            late_seconds=found.late_seconds,
            times_last=found.times_last,
            samples=found.samples,
            straggles=found.straggles,
        )
        for row, found in zip(rows, arrivals(rows, headline(run).step_seconds), strict=False)
    )


def straggler(found: tuple[Wait, ...]) -> Wait | None:
    """Returns the first of the ranks that straggle, or else of all ranks; None without waits.

    >>> straggler(()) is None
    True
    """
    return next(iter(stragglers(found) or _last_first(found)), None)


def stragglers(found: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Returns the ranks that straggle, the one that came last most often first.

    Of two ranks that came last equally often the later one is first.

    >>> waits = Wait(0, "a", 0.1, -0.1, 0, 9), Wait(1, "b", 0.0, 0.1, 9, 9, straggles=True)
    >>> [wait.host for wait in stragglers(waits)]
    ['b']
    """
    return _last_first(tuple(wait for wait in found if wait.straggles))


def _last_first(found: tuple[Wait, ...]) -> tuple[Wait, ...]:
    return tuple(sorted(found, key=lambda wait: (-wait.times_last, -wait.late_seconds)))


def _by_step(run: LoggedRun, rank: int) -> Mapping[int, float]:
    return {
        step.step: (step.first_bucket_wait_seconds + (step.meeting_seconds or 0.0)) / step.steps
        for step in steady(run.ranks[rank])
        if step.first_bucket_wait_seconds is not None
    }
