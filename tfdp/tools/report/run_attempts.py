"""The attempts of a run that `tfdp run` has started, some of them again after a failure."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from tfdp.base.words import duration, moment
from tfdp.tools.report.log_lines import check_format
from tfdp.tools.report.log_values import Fields

_FILE = "attempts.jsonl"


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """One start of all ranks.

    Args:
      time: When it began, in seconds since 1970.
      ranks: The number of ranks.
      seconds: The time from the start to the end.
      first_step, last_step: The steps that a training with a Checkpoint began; None: not known.
      code: The exit code.
      reason: How it ended.
    """

    time: float
    ranks: int
    seconds: float
    first_step: int | None
    last_step: int | None
    code: int
    reason: str

    @property
    def steps(self) -> str:
        """The steps, in words."""
        if self.first_step is None or self.last_step is None:
            return "–"
        return f"{self.first_step}–{self.last_step}"


def read_attempts(directory: pathlib.Path) -> tuple[LoggedAttempt, ...]:
    """Reads `attempts.jsonl` of a log directory; there is none where `tfdp run` was not used.

    A line that was not written whole is left out.

    Raises:
      LogError: The values of a line are impossible.
      OSError: The file cannot be read.

    >>> read_attempts(pathlib.Path("no/logs"))
    ()
    """
    path = directory / _FILE
    if not path.exists():
        return ()
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):  # empty, or cut off by a kill or a full disk
            continue
        if not isinstance(values, dict):
            continue
        fields = Fields(values, f"{_FILE}, line {number}")
        check_format(fields.whole("format", 1), _FILE)
        found.append(
            LoggedAttempt(
                time=fields.number("time"),
                ranks=fields.whole("ranks", 1),
                seconds=fields.number("seconds", 0),
                first_step=fields.whole_or_none("first_step"),
                last_step=fields.whole_or_none("last_step"),
                code=fields.whole("code"),
                reason=fields.text("reason"),
            )
        )
    return tuple(found)


def attempt_rows(attempts: Sequence[LoggedAttempt]) -> list[tuple[str, ...]]:
    """Returns (number, began, ranks, steps, time, end) of each attempt, in words.

    >>> attempt_rows([LoggedAttempt(0, 4, 60, 1, 9, 137, "rank 3 of 4 failed first.")])[0][2:]
    ('4', '1–9', '1 min 0 s', 'rank 3 of 4 failed first.')
    """
    return [
        (
            str(number),
            moment(one.time),
            str(one.ranks),
            one.steps,
            duration(one.seconds),
            one.reason,
        )
        for number, one in enumerate(attempts, 1)
    ]
