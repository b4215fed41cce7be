"""Which rank failed first, and of what."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence

from tfdp.errors import LOST_RANK_MARK

# When one rank dies, others can fail of that within a fraction of a second, and the kernel may
# take longer to end the culprit.
SAME_TIME_SECONDS = 1.0

_MAX_LINES, _SHOWN_FIRST, _SHOWN_LAST = 9, 5, 3  # of one error
_FALLBACK_LINES = 5

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s+File "')
# What TensorFlow logs as information or as a warning: "I0000 00:00:1795249739.743009 ...".
_NO_ERROR = re.compile(r"[IW]\d{4} |\d{4}-\d\d-\d\d \S+ [IW] |WARNING: All log messages before")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank that did not end with 0.

    Args:
        rank: its number.
        returncode: its exit code; for a signal, the number with a minus.
        ended_at: when, in seconds.
        said: the last lines that it wrote to standard error.

    Example:
        >>> Failure(rank=1, returncode=-9, ended_at=0.0, said=()).how
        'signal SIGKILL'
    """

    rank: int
    returncode: int
    ended_at: float
    said: Sequence[str]

    @property
    def how(self) -> str:
        """The exit code or the signal, in words."""
        if self.returncode < 0:
            return f"signal {signal_name(-self.returncode)}"
        return f"exit code {self.returncode}"

    @property
    def exit_code(self) -> int:
        """What a shell would exit with: the code, or 128 + the signal."""
        return self.returncode if self.returncode > 0 else 128 - self.returncode

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it, other than the one that it sends itself."""
        return self.returncode < 0 and self.returncode != -signal.SIGABRT

    @property
    def is_consequence(self) -> bool:
        """Whether it says itself that another rank was lost."""
        return any(LOST_RANK_MARK in line for line in self.said)

    @property
    def lost_rank(self) -> int | None:
        """The rank that it says it lost last, if any.

        Example:
            >>> Failure(0, 1, ended_at=0.0, said=("RankLostError: lost rank 3",)).lost_rank
            3
        """
        named = re.findall(rf"{LOST_RANK_MARK} (\d+)", "\n".join(self.said))
        return int(named[-1]) if named else None


def signal_name(number: int) -> str:
    """A signal's name.

    Example:
        >>> signal_name(15)
        'SIGTERM'
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"number {number}"


def first_failure(failures: Sequence[Failure]) -> Failure:
    """The failure that the others followed from.

    A rank that says itself that it lost another is passed by. The first of the rest in time is
    it, but a rank that a signal killed within the next second goes before: the others see its
    connections close before its parent sees it end. SIGABRT has no such right, as libraries
    abort a process that has lost another.

    Example:
        >>> lost = Failure(0, 1, ended_at=5.0, said=["RuntimeError: lost rank 1"])
        >>> killed = Failure(1, -9, ended_at=5.1, said=[])
        >>> first_failure([lost, killed]).rank
        1
    """
    causes = [failure for failure in failures if not failure.is_consequence] or failures
    earliest = min(failure.ended_at for failure in causes)
    together = [f for f in causes if f.ended_at <= earliest + SAME_TIME_SECONDS]
    return min(together, key=lambda f: (not f.was_killed, f.ended_at, f.rank))


def last_error(lines: Sequence[str]) -> str:
    r"""The exception of the last traceback, with its message; of a long one both ends.

    Where there is no traceback, the last lines that say anything.

    Example:
        >>> print(last_error('''Traceback (most recent call last):
        ...   File "train.py", line 1, in <module>
        ... ValueError: `x` must be positive;
        ... received -1.'''.splitlines()))
        ValueError: `x` must be positive;
        received -1.
    """
    said = [line.rstrip() for line in lines if line.strip() and not _NO_ERROR.match(line)]
    headers = [i for i, line in enumerate(said) if _TRACEBACK in line]
    if not headers:
        return "\n".join(said[-_FALLBACK_LINES:])
    after = said[headers[-1] + 1 :]
    frames = next((i for i, line in enumerate(after) if not line[0].isspace()), 0)
    error = after[frames:]
    if len(error) > _MAX_LINES:  # TensorFlow puts the graph's own call stack into the message
        error = [line for line in error if not _FRAME.match(line)]
    if len(error) > _MAX_LINES:
        error = [*error[:_SHOWN_FIRST], "...", *error[-_SHOWN_LAST:]]
    return "\n".join(error)
