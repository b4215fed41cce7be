"""The parts of a step's time, on each rank and over time."""

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Mapping

from tfdp.base.log_lines import StepLine
from tfdp.tools.report.log_directory import LoggedRun
from tfdp.tools.report.rank_log import steady

# The parts in the order of a step. `rest` stands for all but `input` where a step was not sampled.
PARTS = ("input", "compute", "meeting", "communication", "other", "rest")


@dataclasses.dataclass(frozen=True)
class Split:
    """The seconds of a step by part, without the parts that were not measured."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def share(self, part: str) -> float | None:
        """Returns a part's fraction of the step; None if it was not measured.

        >>> split = Split({"input": 1.0, "rest": 3.0})
        >>> split.share("input"), split.share("compute")
        (0.25, None)
        """
        if part not in self.parts:
            return None
        return self.parts[part] / self.total if self.total > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class RankSplit:
    """The medians of a rank's steps, over `samples` executions."""

    rank: int
    host: str
    split: Split
    samples: int


def split_of(step: StepLine) -> Split | None:
    """Takes one step of an execution apart; None if it was not sampled.

    `other` is the remaining time of the step: Keras, callbacks, the launch of the function.
    Meetings may overlap; their sum is cut to what the parts that do not overlap leave.

    >>> step = StepLine(0, 2, 0, 2, 8, seconds=2.0, input_seconds=0.5, compute_seconds=1.0,
    ...             communication_seconds=0.25)
    >>> split_of(step).parts
    {'input': 0.25, 'compute': 0.5, 'communication': 0.125, 'other': 0.125}
    """
    if step.compute_seconds is None:
        return None
    measured = {
        "input": step.input_seconds,
        "compute": step.compute_seconds,
        "communication": step.communication_seconds,
    }
    parts = {part: value / step.steps for part, value in measured.items() if value is not None}
    left = max(0.0, step.seconds / step.steps - sum(parts.values()))
    if step.meeting_seconds is not None:
        parts["meeting"] = min(left, step.meeting_seconds / step.steps)
    parts["other"] = left - parts.get("meeting", 0.0)
    return Split(parts)


def rank_splits(run: LoggedRun) -> tuple[RankSplit, ...]:
    """Returns each rank's median step; without sampled steps only its `input` and `rest`.

    Ranks without any measured part are left out, and so are the steps that
    :func:`tfdp.tools.report.rank_log.steady` leaves out.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import RankLog, Session
    >>> from tfdp.base.log_lines import StartLine
    >>> steps = [StepLine(n, n, 0, 1, 8, seconds=4, input_seconds=n) for n in (1, 2, 3)]
    >>> log = RankLog((Session(StartLine(0, 0, 1, "a", 2), 3, steps),), tuple(steps), (), ())
    >>> rank_splits(LoggedRun(pathlib.Path(), (log,), None, ()))
    (RankSplit(rank=0, host='a', split=Split(parts={'input': 2.5, 'rest': 1.5}), samples=2),)
    """
    found = []
    for rank, log in enumerate(run.ranks):
        steps = steady(log)
        splits = [split for split in map(split_of, steps) if split is not None]
        splits = splits or [split for split in map(_unsampled, steps) if split is not None]
        if splits:
            found.append(RankSplit(rank, log.start.host, median(splits), len(splits)))
    return tuple(found)


def over_time(run: LoggedRun) -> list[tuple[int, Split]]:
    """Returns (step, the median of the ranks) of each sampled step, in order.

    >>> import pathlib
    >>> from tfdp.tools.report.rank_log import RankLog, Session
    >>> from tfdp.base.log_lines import StartLine
    >>> steps = [StepLine(n, n, 0, 1, 8, seconds=4, compute_seconds=3) for n in (1, 2)]
    >>> log = RankLog((Session(StartLine(0, 0, 1, "a", 2), 3, steps),), tuple(steps), (), ())
    >>> over_time(LoggedRun(pathlib.Path(), (log, log), None, ()))
    [(2, Split(parts={'compute': 3.0, 'other': 1.0}))]
    """
    by_step: dict[int, list[Split]] = collections.defaultdict(list)
    for log in run.ranks:
        for step in steady(log):
            split = split_of(step)
            if split is not None:
                by_step[step.step].append(split)
    return [(step, median(splits)) for step, splits in sorted(by_step.items())]


def median(splits: Iterable[Split]) -> Split:
    """Returns the median of each part, over the splits that have it.

    >>> median([Split({"input": 1.0}), Split({"input": 3.0}), Split({"input": 9.0})]).parts
    {'input': 3.0}
    """
    values: dict[str, list[float]] = collections.defaultdict(list)
    for split in splits:
        for part, seconds in split.parts.items():
            values[part].append(seconds)
    return Split({part: statistics.median(values[part]) for part in PARTS if part in values})


def _unsampled(step: StepLine) -> Split | None:
    if step.input_seconds is None:
        return None
    waited = min(step.input_seconds, step.seconds) / step.steps
    return Split({"input": waited, "rest": step.seconds / step.steps - waited})
