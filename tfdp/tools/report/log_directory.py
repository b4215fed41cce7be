"""A log directory: its ranks' files, the run's attempts and the manifest.

Notes say what is missing.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp.base.log_lines import ATTEMPTS, AttemptLine, StartLine
from tfdp.base.words import duration, moment, ranks_in_words
from tfdp.tools.report.exchanges import FILE as EXPLANATION
from tfdp.tools.report.exchanges import Exchanges, exchanges
from tfdp.tools.report.log_reader import LogError, check_format, json_object, record
from tfdp.tools.report.rank_log import RankLog, read_rank

_RANK_FILE = re.compile(r"rank(\d+)\.jsonl")
_WRITE = "`tfdp.callbacks.Telemetry(log_dir)`"


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """The contents of a log directory.

    Args:
      directory: The path of the directory.
      ranks: The logs of rank 0, 1, ... of the latest start.
      manifest: The object in `manifest.json`; None without one.
      attempts: The starts of all ranks by `tfdp run`; empty where that was not used.
      notes: What a reader of the report must know of the files, each a sentence.
      exchanges: What a partitioned step exchanges; None where nobody has written it.
    """

    directory: pathlib.Path
    ranks: tuple[RankLog, ...]
    manifest: Mapping[str, Any] | None
    notes: tuple[str, ...]
    attempts: tuple[AttemptLine, ...] = ()
    exchanges: Exchanges | None = None

    @property
    def first(self) -> RankLog:
        """Rank 0's log, whose losses are those of all ranks."""
        return self.ranks[0]

    @property
    def start(self) -> StartLine:
        """Rank 0's latest start."""
        return self.first.start


def read_run(directory: pathlib.Path) -> LoggedRun:
    """Reads a log directory, also one that is still being written.

    Raises:
      LogError: The directory does not exist, or a rank's file is missing, damaged, of another run
        or of a newer format, or there is no step in rank 0's.
      OSError: A file cannot be read.

    >>> read_run(pathlib.Path("no/logs"))
    Traceback (most recent call last):
    tfdp.tools.report.log_reader.LogError: `LOG_DIR` must be a directory that ... wrote, ...
    """
    logs = _rank_logs(directory)
    size = max(logs.values(), key=lambda log: log.start.time).start.world_size
    _check_ranks(directory, logs, size)
    ranks = tuple(logs[rank] for rank in range(size))
    if not ranks[0].steps:
        raise LogError(
            f"`LOG_DIR` must hold at least one step, but rank 0 has logged none in "
            f"{str(directory)!r}. If training has just started, try again in a moment; if it "
            "failed, mend that first and train again."
        )
    manifest, trouble = _object(directory / "manifest.json")
    explained, doubts = _exchanges(directory / EXPLANATION)
    strangers = sorted(rank for rank in logs if rank >= size)
    notes = (*_notes(ranks, strangers), *trouble, *doubts)
    return LoggedRun(directory, ranks, manifest, notes, read_attempts(directory), explained)


def _rank_logs(directory: pathlib.Path) -> dict[int, RankLog]:
    """Returns the logs by rank, of all files that have a first line."""
    if not directory.is_dir():
        found = "a file" if directory.exists() else "nothing"
        raise LogError(
            f"`LOG_DIR` must be a directory that {_WRITE} wrote, but there is {found} at "
            f"{str(directory)!r}. Give the directory that the callback was given."
        )
    logs = {}
    for path in directory.iterdir():
        match = _RANK_FILE.fullmatch(path.name)
        log = read_rank(path) if match and path.is_file() else None
        if match is None or log is None:
            continue
        rank = int(match[1])
        if log.start.rank != rank:
            raise LogError(
                f"{path} must be the log of rank {rank}, but says that it is of rank "
                f"{log.start.rank}. Rename it to rank{log.start.rank}.jsonl."
            )
        logs[rank] = log
    if not logs:
        raise LogError(
            f"`LOG_DIR` must hold rank0.jsonl with the start of a run, but there is none in "
            f"{str(directory)!r}. Train with `model.fit(..., callbacks=["
            f"tfdp.callbacks.Telemetry({str(directory)!r})])`, or give another directory."
        )
    return logs


def _check_ranks(directory: pathlib.Path, logs: Mapping[int, RankLog], size: int) -> None:
    missing = [rank for rank in range(size) if rank not in logs]
    if not missing:
        return
    files = ", ".join(f"rank{rank}.jsonl" for rank in missing)
    raise LogError(
        f"`LOG_DIR` must hold the log of each of the run's {size} ranks, but "
        f"{ranks_in_words(missing)} {'is' if len(missing) == 1 else 'are'} missing in "
        f"{str(directory)!r}. Copy {files} there from the hosts that wrote "
        f"{'it' if len(missing) == 1 else 'them'}; if training has just started, try again in a "
        "moment."
    )


def _object(path: pathlib.Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Returns the object in a file, and a note if it cannot be read; the numbers do not need it."""
    try:
        values = json_object(path.read_bytes())
    except FileNotFoundError:
        return None, []
    if values is None:
        return None, [f"{path.name} is damaged and left out: it is not a JSON object."]
    check_format(values.get("format"), str(path))
    return values, []


def _exchanges(path: pathlib.Path) -> tuple[Exchanges | None, list[str]]:
    """Returns the tables of an explanation, and a note if they cannot be made."""
    values, trouble = _object(path)
    if values is None:
        return None, trouble
    try:
        return exchanges(values), []
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None, [f"{path.name} is left out: it is not what `explain` writes."]


def _notes(ranks: tuple[RankLog, ...], strangers: list[int]) -> list[str]:
    first, notes = ranks[0], []
    if len(first.sessions) > 1:
        at = ", ".join(map(str, first.restarts))
        text = f"The run was started {len(first.sessions)} times"
        notes.append(f"{text}; it went on at step {at}." if at else f"{text}.")
    if first.repeated_steps:
        notes.append(
            f"{first.repeated_steps} steps were repeated after a restart; the later ones are shown."
        )
    for rank, log in enumerate(ranks):
        if log.cut_lines:
            lines = ", ".join(map(str, log.cut_lines))
            notes.append(f"rank{rank}.jsonl was cut off while line {lines} was written; left out.")
    behind = [rank for rank, log in enumerate(ranks) if not log.steps]
    if behind:
        notes.append(f"Without any step so far: {ranks_in_words(behind)}.")
    if strangers:
        notes.append(
            f"The files of {ranks_in_words(strangers)} are of an earlier start on more ranks and "
            "are left out."
        )
    fewer = [rank for rank, log in enumerate(ranks) if len(log.sessions) != len(first.sessions)]
    if fewer:
        notes.append(f"Started another number of times than rank 0: {ranks_in_words(fewer)}.")
    return notes


def read_attempts(directory: pathlib.Path) -> tuple[AttemptLine, ...]:
    """Reads `attempts.jsonl` of a log directory; there is none where `tfdp run` was not used.

    A line that was not written whole is left out.

    Raises:
      LogError: The values of a line are impossible.
      OSError: The file cannot be read.

    >>> read_attempts(pathlib.Path("no/logs"))
    ()
    """
    path = directory / ATTEMPTS
    if not path.exists():
        return ()
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        values = json_object(line)
        if values is None:  # empty, or cut off by a kill or a full disk
            continue
        entry = record({"kind": "attempt", **values}, f"{ATTEMPTS}, line {number}")
        if isinstance(entry, AttemptLine):
            found.append(entry)
    return tuple(found)


def attempt_rows(attempts: Sequence[AttemptLine]) -> list[tuple[str, ...]]:
    """Returns (number, began, ranks, steps, time, end) of each attempt, in words.

    >>> attempt_rows([AttemptLine(0, 4, 60, 1, 9, 137, "rank 3 of 4 failed first.")])[0][2:]
    ('4', '1–9', '1 min 0 s', 'rank 3 of 4 failed first.')
    """
    return [
        (
            str(number),
            moment(one.time),
            str(one.ranks),
            steps_of(one),
            duration(one.seconds),
            one.reason,
        )
        for number, one in enumerate(attempts, 1)
    ]


def steps_of(attempt: AttemptLine) -> str:
    """Returns the steps of an attempt, in words.

    >>> steps_of(AttemptLine(0, 4, 60, None, None, 0, ""))
    '–'
    """
    if attempt.first_step is None or attempt.last_step is None:
        return "–"
    return f"{attempt.first_step}–{attempt.last_step}"
