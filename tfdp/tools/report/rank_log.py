"""One rank's file: its lines, checked, and its starts put together into one run."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfdp.base.log_lines import (
    EndLine,
    EpochLine,
    Record,
    StartLine,
    StepLine,
    StragglerLine,
)
from tfdp.tools.report.log_reader import LogError, json_object, record


@dataclasses.dataclass
class Session:
    """The lines that a rank wrote from one start to the next.

    Args:
      start: The first line of the session.
      last_time: The time of its last line, in seconds since 1970.
    """

    start: StartLine
    last_time: float
    steps: list[StepLine] = dataclasses.field(default_factory=list)
    epochs: list[EpochLine] = dataclasses.field(default_factory=list)
    stragglers: list[StragglerLine] = dataclasses.field(default_factory=list)
    ended: bool = False

    def add(self, entry: Record) -> None:
        """Takes the next line."""
        self.last_time = max(self.last_time, entry.time)
        if isinstance(entry, StepLine):
            self.steps.append(entry)
        elif isinstance(entry, EpochLine):
            self.epochs.append(entry)
        elif isinstance(entry, StragglerLine):
            self.stragglers.append(entry)
        elif isinstance(entry, EndLine):
            self.ended = True


@dataclasses.dataclass(frozen=True)
class RankLog:
    """The lines that one rank wrote, in the order of steps.

    Args:
      sessions: The sessions, one for each start.
      steps: The steps of all sessions; where a restart went back and repeated steps, the later
        ones.
      epochs: The epochs of all sessions, without repeated ones.
      stragglers: The stragglers of all sessions, without repeated ones; an epoch may have several.
      repeated_steps: The number of repeated steps.
      restarts: The first steps of the second and later starts.
      cut_lines: The numbers of lines that a kill cut off.
    """

    sessions: tuple[Session, ...]
    steps: tuple[StepLine, ...]
    epochs: tuple[EpochLine, ...]
    stragglers: tuple[StragglerLine, ...]
    repeated_steps: int = 0
    restarts: tuple[int, ...] = ()
    cut_lines: tuple[int, ...] = ()

    @property
    def start(self) -> StartLine:
        return self.sessions[-1].start

    @property
    def last_time(self) -> float:
        """The time of the last line, seconds since 1970."""
        return self.sessions[-1].last_time

    @property
    def ended(self) -> bool:
        """Whether the training ended, rather than being cut off or going on."""
        return self.sessions[-1].ended


def read_rank(path: pathlib.Path) -> RankLog | None:
    """Reads `rankN.jsonl`; None if its first line is not complete yet.

    Cost: the file is read once, some 50 µs a line, and its numbers are kept.

    Raises:
      LogError: A line in the middle is broken, or its values are impossible.
      OSError: The file cannot be read.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rank0.jsonl"
    >>> _ = path.write_text('{"kind": "start", "time": 1, "format": 1, "rank": 0, "host": "a", '
    ...                     '"world_size": 1, "replicas": 2}' + chr(10) + '{"kind": "ste')
    >>> log = read_rank(path)
    >>> log.start.host, len(log.steps), log.cut_lines
    ('a', 0, (2,))
    """
    sessions: list[Session] = []
    cut: list[int] = []
    for number, values in lines(path):
        if values is None:
            cut.append(number)
            continue
        where = f"{path.name}, line {number}"
        entry = record(values, where)
        if isinstance(entry, StartLine):
            sessions.append(Session(entry, entry.time))
        elif not sessions:
            raise LogError(
                f"{where}: the first line must be the start of a run, but received kind "
                f"{values.get('kind')!r}. The file's beginning is missing: copy the whole file."
            )
        elif entry is not None:
            sessions[-1].add(entry)
    return _joined(sessions, cut) if sessions else None


def lines(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yields each line's number and object; None for a line that a kill cut off.

    Such a line is the last one if it has no end, or one after which a restart goes on.
    """
    parts = path.read_bytes().split(b"\n")
    unfinished = len(parts)  # the line after the last line feed
    for number, line in enumerate(parts, 1):
        if not line.strip():
            continue
        values = json_object(line)
        if values is not None:
            yield number, values
            continue
        restart = _start_behind(line)
        if restart is not None:
            yield number, None
            yield number, restart
        elif number == unfinished or _is_start(json_object(parts[number])):
            yield number, None
        else:
            shown = line[:60].decode(errors="replace")
            raise LogError(
                f"{path}, line {number} must be a JSON object, but received {shown!r}. The file "
                "is damaged: take it from the host that wrote it, or delete that line."
            )


def _start_behind(line: bytes) -> dict[str, Any] | None:
    """Returns the start that a restart wrote in the same line, behind a record that was cut off."""
    for brace in range(1, len(line)):
        if line[brace : brace + 1] == b"{" and _is_start(values := json_object(line[brace:])):
            return values
    return None


def _is_start(values: dict[str, Any] | None) -> bool:
    return values is not None and values.get("kind") == "start"


def _joined(sessions: Sequence[Session], cut: Iterable[int]) -> RankLog:
    """Joins the sessions to one run, without the steps that a later session repeats."""
    began = [session.steps[0].first if session.steps else None for session in sessions]
    later = [first for first in began[1:] if first is not None]
    steps: list[StepLine] = []
    epochs: list[EpochLine] = []
    stragglers: dict[int, list[StragglerLine]] = {}
    repeated = 0
    for session, first in zip(sessions, began, strict=True):
        if first is not None:
            repeated += sum(step.steps for step in steps if step.step >= first)
            steps = [step for step in steps if step.step < first]
            epochs = [epoch for epoch in epochs if epoch.step < first]
        steps += session.steps
        epochs += session.epochs
        named: dict[int, list[StragglerLine]] = {}
        for entry in session.stragglers:
            named.setdefault(entry.epoch, []).append(entry)
        stragglers |= named
    return RankLog(
        sessions=tuple(sessions),
        steps=tuple(steps),
        epochs=tuple(epochs),
        stragglers=tuple(entry for epoch in sorted(stragglers) for entry in stragglers[epoch]),
        repeated_steps=repeated,
        restarts=tuple(later),
        cut_lines=tuple(cut),
    )


def steady(log: RankLog) -> tuple[StepLine, ...]:
    """Returns the executions whose times tell of the training, not of what else happens.

    The first execution of each epoch is left out, as it contains compilation or validation and the
    start of the input. After each start, the first with another number of steps is left out, as it
    is compiled, too. If that leaves nothing, because each epoch is one execution, only the first
    after each start is left out; if that still leaves nothing, no execution is.

    >>> steps = [StepLine(time=0, step=n, epoch=0, steps=1, examples=8, seconds=1) for n in (1, 2)]
    >>> log = RankLog((Session(StartLine(0, 0, 1, "a", 1), 0, steps),), tuple(steps), (), ())
    >>> [step.step for step in steady(log)]
    [2]
    """
    starts = {id(step) for session in log.sessions for step in session.steps[:1]}
    later = tuple(step for step in log.steps if id(step) not in starts)
    return _not_first(log) or later or log.steps


def only_first(log: RankLog) -> bool:
    """Returns whether all executions are such as :func:`steady` leaves out.

    >>> step = StepLine(time=0, step=1, epoch=0, steps=1, examples=8, seconds=9)
    >>> only_first(RankLog((Session(StartLine(0, 0, 1, "a", 1), 0, [step]),), (step,), (), ()))
    True
    """
    return not _not_first(log)


def _not_first(log: RankLog) -> tuple[StepLine, ...]:
    first = set()
    for session in log.sessions:
        of_epoch: dict[int, StepLine] = {}
        of_length: dict[int, StepLine] = {}
        for step in session.steps:
            of_epoch.setdefault(step.epoch, step)
            of_length.setdefault(step.steps, step)
        first |= {id(step) for step in (*of_epoch.values(), *of_length.values())}
    return tuple(step for step in log.steps if id(step) not in first)
