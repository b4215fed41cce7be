"""Attempts of a run: how each ended, which failed ones another follows and when, what is kept.

How many ranks another attempt has is decided in `places`.
"""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence

from tfdp.base.log_lines import ATTEMPTS, AttemptLine
from tfdp.cluster import secret
from tfdp.cluster.launch.rank_start import LOOPBACK, RankGroup
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.supervision import Order
from tfdp.cluster.launch.verdict import Outcome

# The variable that tells each rank how many attempts of the run were made before this one.
RESTART_COUNT = "TFDP_RESTART_COUNT"

# The pause before a restart (backoff), which doubles with each further one up to the longest.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of all ranks, and how it ended.

    Attributes:
      code: The exit code.
      message: What is said of the end; empty if all ranks ended well.
      outcome: How the ranks ended.
      seconds: The time from the start to the end.
      world_size: The number of ranks.
      first_rank: The first rank of this host.
      is_consequence: Whether the ranks of this host say themselves that others were lost.
      began: When it began, in seconds since 1970.
      log_dir: The folder to which the training's Telemetry writes, if it has told.
      failed_at_start: The ranks that failed of themselves before their strategies were made.
      steps: The first and the last step that a training with a Checkpoint has begun; None: not
        known.
    """

    code: int
    message: str
    outcome: Outcome
    seconds: float
    world_size: int
    failed_at_start: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None
    first_rank: int = 0
    is_consequence: bool = False
    began: float = 0.0
    log_dir: str | None = None

    @property
    def failed(self) -> bool:
        """Whether ranks failed of themselves, so that another attempt may go on.

        A signal to the launcher or the time limit is somebody's will. Ranks that ended with 0 and
        trained alone would do so again.
        """
        outcome = self.outcome
        ended = outcome.failed or outcome.launcher_first or outcome.hangs
        return not self._wanted and not outcome.missed and bool(ended)

    @property
    def resized(self) -> bool:
        """Whether the ranks stopped at a checkpoint, for another number of them to go on."""
        outcome = self.outcome
        stopped = outcome.resized and bool(outcome.stopped or outcome.missed)
        return stopped and not self._wanted and not self.failed

    @property
    def _wanted(self) -> bool:
        return self.outcome.signal is not None or self.outcome.timed_out


class Restarts:
    """The restarts of a run.

    Args:
      most: The most restarts within the window.
      window_seconds: The window, which ends now; None: the whole run.
      clock: Returns the time in seconds.

    >>> restarts = Restarts(2)
    >>> restarts.pause(), restarts.pause(), restarts.pause()
    (1.0, 2.0, None)
    """

    def __init__(
        self,
        most: int,
        window_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._window = float("inf") if window_seconds is None else window_seconds
        self._clock = clock
        self._made: list[float] = []

    def pause(self) -> float | None:
        """Returns the seconds to wait before a restart, and counts it; None if none is left."""
        now = self._clock()
        self._made = [when for when in self._made if now - when < self._window]
        if len(self._made) >= self._most:
            return None
        self._made.append(now)
        return min(_FIRST_PAUSE_SECONDS * 2 ** (len(self._made) - 1), _LONGEST_PAUSE_SECONDS)

    @property
    def left(self) -> int:
        """The number of restarts that the window leaves."""
        return self._most - len(self._made)


def announcement(pause: float, left: int) -> str:
    """Returns what is said before the next attempt."""
    return f"all ranks start again in {pause:g} s; restarts left after that: {left}."


def same_step(attempts: Sequence[Attempt]) -> str:
    """Returns what is said where the last two attempts failed at the same step; else nothing.

    >>> ended = Outcome(None, False, failed=(1,), unfinished=(0,), absent=())
    >>> attempt = Attempt(1, "rank 1 of 2 failed first, ...", ended, 61.2, 2, steps=(1, 12))
    >>> same_step([attempt])
    ''
    >>> print(same_step([attempt, attempt]))
    the attempt before failed at step 12, too, which is no accident: look at the error above.
    """
    steps = [attempt.steps for attempt in attempts[-2:] if attempt.failed]
    if len(steps) < 2 or steps[0] is None or steps[1] is None or steps[0][1] != steps[1][1]:
        return ""
    return (
        f"the attempt before failed at step {steps[0][1]}, too, which is no accident: look at the "
        "error above."
    )


def in_short(attempt: Attempt) -> str:
    """Returns how an attempt ended, in one sentence: others name logs, which move.

    >>> ended = Outcome(None, False, failed=(), unfinished=(), absent=())
    >>> in_short(Attempt(0, "", ended, 61.2, 2))
    'all ranks ended well.'
    """
    said = attempt.message.partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{said or 'all ranks ended well'}."


def summary(attempts: Sequence[Attempt]) -> str:
    """Returns a line for each attempt, if there were several; else nothing.

    >>> ended = Outcome(None, False, failed=(1,), unfinished=(0,), absent=())
    >>> well = dataclasses.replace(ended, failed=(), unfinished=())
    >>> print(summary([
    ...     Attempt(137, "rank 1 of 2 failed first, with signal SIGKILL. It ...", ended, 61.2, 2),
    ...     Attempt(0, "", well, 30.0, 1),
    ... ]))
    2 attempts were made:
      1. 2 ranks, after 61 s: rank 1 of 2 failed first, with signal SIGKILL.
      2. 1 rank, after 30 s: all ranks ended well.
    """
    if len(attempts) < 2:
        return ""
    lines = [f"{len(attempts)} attempts were made:"]
    for number, attempt in enumerate(attempts, 1):
        ranks = f"{attempt.world_size} rank{'s' * (attempt.world_size != 1)}"
        lines.append(f"  {number}. {ranks}, after {attempt.seconds:.0f} s: {in_short(attempt)}")
    return "\n".join(lines)


def keep(attempt: Attempt) -> str:
    """Appends a line to `attempts.jsonl` in the folder that the training's Telemetry writes to.

    Does nothing where there is none.

    Returns:
      What is said where the line cannot be written; else nothing.
    """
    if attempt.log_dir is None:
        return ""
    first, last = attempt.steps or (None, None)
    entry = AttemptLine(
        time=round(attempt.began, 3),
        ranks=attempt.world_size,
        seconds=round(attempt.seconds, 3),
        first_step=first,
        last_step=last,
        code=attempt.code,
        reason=in_short(attempt),
    )
    line = {"kind": "attempt", **dataclasses.asdict(entry)}
    path = pathlib.Path(attempt.log_dir, ATTEMPTS)
    try:
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            cut = file.read(1) not in (b"", b"\n")  # a line that was not written whole
            file.write(b"\n" * cut + json.dumps(line).encode() + b"\n")
    except OSError as error:
        return f"{os.fspath(path)} must be writable, and gives: {error.strerror}; a line is lost."
    return ""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What follows an attempt.

    Attributes:
      goes_on: Whether another attempt follows.
      pause: The seconds before it.
      code: The exit code of the run, if none follows.
      message: What is said on all nodes; empty where all ended well.
    """

    goes_on: bool
    pause: float
    code: int
    message: str


ANEW = Decision(True, 0.0, 0, "")


class SingleNode:
    """A launcher whose ranks are all ranks.

    Args:
      options: The options of the run.
      end: The monotonic time at which the limit ends the run.

    Attributes:
      interface: The address of the interface that the ranks listen on.
      reason: Why others have ended the ranks of this node.
    """

    interface, reason = LOOPBACK, ""

    def __init__(self, options: RunOptions, end: float) -> None:
        self._end = end
        self._restarts = Restarts(options.max_restarts, options.restart_window_seconds)

    def start(
        self, ports: Sequence[int], gpus: Sequence[str | None], attempts: int
    ) -> tuple[RankGroup, str, dict[str, str]]:
        """Returns the ranks of an attempt, their secret, and what each gets in its environment.

        Args:
          ports: The ports on which the ranks of this node are to listen.
          gpus: The GPUs of each.
          attempts: The number of attempts that this node has seen.
        """
        group = RankGroup.of_this_host(ports, gpus)
        return group, secret.made(), {RESTART_COUNT: str(attempts)}

    def order(self) -> Order | None:
        """Returns what others have the ranks that run do."""
        return None

    def did_not_start(self, message: str) -> Decision:
        """Returns what follows where the ranks of this node could not be started; fewer can be."""
        return ANEW

    def ended(self, attempt: Attempt) -> Decision:
        """Returns what follows an attempt. A restart that the time limit forbids does not."""
        if attempt.resized:
            return Decision(True, 0.0, 0, attempt.message)
        pause = self._restarts.pause() if attempt.failed else None
        if pause is None or time.monotonic() + pause >= self._end:
            message = "" if attempt.failed else attempt.message
            return Decision(False, 0.0, attempt.code, message)
        return Decision(True, pause, 0, announcement(pause, self._restarts.left))
