"""The attempts of a run that `tfdp run` has started, some of them again after a failure."""

import pathlib
from collections.abc import Sequence

from tfdp.base.log_lines import ATTEMPTS, AttemptLine
from tfdp.base.words import duration, moment
from tfdp.tools.report.log_reader import json_object, record


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
