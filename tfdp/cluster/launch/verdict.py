"""The end of a run: which rank failed first and why, the exit code and the last lines."""

import dataclasses
import os
import re
import shlex
import signal
import textwrap
from collections.abc import Mapping, Sequence

from tfdp.base.words import error_of_user_code, ranks_in_words
from tfdp.cluster.launch.output import log_path
from tfdp.cluster.launch.rank_process import MPI_LAUNCHER, STOPPED
from tfdp.cluster.launch.rank_start import RankGroup, tf_config
from tfdp.cluster.launch.run_options import RunOptions

TIMED_OUT = 124  # as of GNU's `timeout`

# When one rank dies, others can fail because of it within a fraction of a second, and the kernel
# may take longer to end the culprit.
SAME_TIME_SECONDS = 1.0
_MAX_LINES, _SHOWN_FIRST, _SHOWN_LAST = 9, 5, 3  # of one error
_FALLBACK_LINES = 5

# What is written where a rank ends all: by MPICH and Intel MPI in the rank, by Open MPI outside.
_MPI_ABORT = re.compile(r"(?:Abort\(-?\d+\) on node|MPI_ABORT was invoked on rank) (\d+)")
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s+File "')
# Python marks a whole line of generated code without any indentation.
_MARKS = re.compile(r"[\s^~]+$")

# Lines that TensorFlow logs as information or as a warning: "I0000 00:00:1795249739.743009 ...".
_NO_ERROR = re.compile(r"[IW]\d{4} |\d{4}-\d\d-\d\d \S+ [IW] |WARNING: All log messages before")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The way in which a run ended.

    Args:
      signal: The first signal that the launcher received and passed on, or None.
      timed_out: Whether the time limit ended the run.
      failed: The ranks that failed of themselves, before all were ended.
      unfinished: The ranks that had not ended by then.
      absent: The ranks that ended with 0 while others waited for them to make their strategy.
      launcher_first: Whether MPI's launcher ended before the ranks, and none had failed by then.
      stopped: The ranks that a signal has stopped after a checkpoint.
      missed: The ranks that the launcher's own signal has killed: their training had just ended.
      elsewhere: Whether the ranks were ended since those of another host had failed.
      wished: Whether somebody asked the launcher for a stop at a checkpoint.
      resized: Whether the launcher itself sent that signal, since another number of ranks may run.
      hangs: Which rank hung, and how that is known; empty if none did.
    """

    signal: int | None
    timed_out: bool
    failed: tuple[int, ...]
    unfinished: tuple[int, ...]
    absent: tuple[int, ...]
    launcher_first: bool = False
    stopped: tuple[int, ...] = ()
    resized: bool = False
    missed: tuple[int, ...] = ()
    elsewhere: bool = False
    wished: bool = False
    hangs: str = ""


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank that did not end with 0, of what it has told by `rank_status`.

    Args:
      rank: The rank, or that which stands for MPI's launcher.
      returncode: The exit code; for a signal, its negative number.
      ended_at: When the process ended, in seconds; its error may be older.
      said: The traceback that the rank has told of, or its last lines on standard error.
      lost_rank: The rank without which it could not go on, if it has told of one.

    >>> Failure(rank=1, returncode=-9, ended_at=0.0, said=()).how
    'signal SIGKILL'
    """

    rank: int
    returncode: int
    ended_at: float
    said: Sequence[str]
    lost_rank: int | None = None

    @property
    def how(self) -> str:
        """The exit code or the signal, in words."""
        if self.returncode < 0:
            return f"signal {signal_name(-self.returncode)}"
        return f"exit code {self.returncode}"

    @property
    def exit_code(self) -> int:
        """The code that a shell would exit with: the rank's exit code, or 128 + the signal."""
        return self.returncode if self.returncode > 0 else 128 - self.returncode

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the rank, other than the signal that a process sends itself."""
        return self.returncode < 0 and self.returncode != -signal.SIGABRT

    @property
    def is_consequence(self) -> bool:
        """Whether the rank itself has told that another was lost; the others may have lost it."""
        return self.lost_rank not in (None, self.rank)


def signal_name(number: int) -> str:
    """Returns a signal's name.

    >>> signal_name(15)
    'SIGTERM'
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"number {number}"


def first_failure(failures: Sequence[Failure]) -> Failure:
    """Returns the failure that caused the others.

    A rank that has told that it lost another is no cause. Of the rest the first in time is, except
    that a rank which a signal killed within the next second has precedence: the others see its
    connections close before its parent sees it end. SIGABRT has no precedence, as libraries abort a
    process that has lost another.

    >>> lost = Failure(0, 1, ended_at=5.0, said=["RankLostError: ..."], lost_rank=1)
    >>> killed = Failure(1, -9, ended_at=5.1, said=[])
    >>> first_failure([lost, killed]).rank
    1
    """
    causes = [failure for failure in failures if not failure.is_consequence] or failures
    earliest = min(failure.ended_at for failure in causes)
    together = [f for f in causes if f.ended_at <= earliest + SAME_TIME_SECONDS]
    return min(together, key=lambda f: (not f.was_killed, f.ended_at, f.rank))


def last_error(lines: Sequence[str]) -> str:
    r"""Returns the exception of the last traceback, with its message; of a long one both ends.

    Without a traceback, returns the last lines that are not blank.

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
    after = [line for line in said[headers[-1] + 1 :] if not _MARKS.match(line)]
    frames = next((i for i, line in enumerate(after) if not line[0].isspace()), 0)
    error = error_of_user_code(after[frames:])
    if len(error) > _MAX_LINES:  # TensorFlow puts the graph's own call stack into the message
        error = [line for line in error if not _FRAME.match(line)]
    if len(error) > _MAX_LINES:
        error = [*error[:_SHOWN_FIRST], "...", *error[-_SHOWN_LAST:]]
    return "\n".join(error)


def verdict(
    options: RunOptions,
    outcome: Outcome,
    failures: Mapping[int, Failure],
    without_strategy: Sequence[int],
    group: RankGroup,
) -> tuple[int, str]:
    """Returns the exit code, and the message about it.

    Args:
      options: The options of the run.
      outcome: The way in which the run ended.
      failures: The failures of all ranks that did not end with 0, also of those that were ended;
        and the end of MPI's launcher, if that was the first.
      without_strategy: The ranks that made no strategy.
      group: The ranks.
    """
    if outcome.timed_out:
        return TIMED_OUT, _timeout_message(options, outcome, group)
    if outcome.hangs and outcome.signal is None:
        return 1, f"{outcome.hangs}."
    if outcome.absent and outcome.signal is None:
        return 1, _absent_message(outcome, group)
    if outcome.missed and outcome.signal is None:
        return STOPPED, (
            f"{ranks_in_words(outcome.missed)} of {group.world_size} had just ended the training "
            "when asked to stop at a checkpoint, for another number of ranks may run."
        )
    if not failures and outcome.stopped and outcome.resized:
        return STOPPED, (
            f"{ranks_in_words(outcome.stopped)} of {group.world_size} stopped at a checkpoint, "
            "for another number of ranks may run."
        )
    if not failures and outcome.stopped:
        return STOPPED, (
            f"{ranks_in_words(outcome.stopped)} of {group.world_size} stopped with exit code "
            f"{STOPPED}, as a training with a Checkpoint does after a signal. Start the same "
            "command again to go on."
        )
    if outcome.elsewhere and not outcome.failed and outcome.signal is None:
        return 1, f"{ranks_in_words(group.ranks)} of {group.world_size} were ended."
    if not failures and outcome.signal is None:
        return _trained_alone(options, without_strategy, group)
    if not failures:
        return 0, ""
    if outcome.signal is not None:
        name = signal_name(outcome.signal)
        cause = (
            "The reader of the output has left" if name == "SIGPIPE" else f"{name} was passed on"
        )
        return 128 + outcome.signal, f"{cause}, and all ranks have ended."
    if outcome.launcher_first:
        return _launcher_ended(outcome, failures, group)
    failed = [failures[rank] for rank in outcome.failed]
    first = first_failure(failed)
    ended_well = first.lost_rank
    if ended_well in (*failures, *outcome.unfinished) or ended_well not in group.ranks:
        ended_well = None
    too = [each.rank for each in failed if each is not first and not each.is_consequence]
    return first.exit_code, _failure_message(options, first, too, outcome, ended_well, group)


class EndedError(Exception):
    """The end of a run.

    Args:
      code: The exit code.
      message: What is said of it; empty where all ended well.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def stopped_by(number: int) -> EndedError:
    """Returns the end by a signal, while no rank ran.

    >>> print(stopped_by(15))
    SIGTERM came, and no rank was started again.
    """
    return EndedError(128 + number, f"{signal_name(number)} came, and no rank was started again.")


def _failure_message(
    options: RunOptions,
    first: Failure,
    too: Sequence[int],
    outcome: Outcome,
    ended_well: int | None,
    group: RankGroup,
) -> str:
    if ended_well is None:
        since = f": it had lost rank {first.lost_rank}" if first.is_consequence else ""
        message = f"rank {first.rank} of {group.world_size} failed first, with {first.how}{since}."
    else:
        code = STOPPED if ended_well in outcome.stopped else 0
        message = (
            f"rank {ended_well} of {group.world_size} ended with exit code {code} before the "
            f"others were done. Let all ranks come to the end of the script, without "
            f"`sys.exit({code})`. "
            f"Rank {first.rank} failed of that, with {first.how}."
        )
    if first.how == "signal SIGKILL":
        message += " Linux kills so where memory runs out; `dmesg` tells."
    if too:
        message += f" {ranks_in_words(too).capitalize()} failed, too."
    if len(outcome.unfinished) > 0:
        message += f" {ranks_in_words(outcome.unfinished).capitalize()} had to be ended."
    if options.log_dir is not None:
        message += f" All of its output is in {log_path(options.log_dir, first.rank)}."
    return _with_error(message, last_error(first.said))


def _launcher_ended(
    outcome: Outcome, failures: Mapping[int, Failure], group: RankGroup
) -> tuple[int, str]:
    """Returns what to say where MPI's launcher took the ranks with it: for one of them, maybe."""
    launcher = failures[MPI_LAUNCHER]
    code = launcher.exit_code or 1
    lines = [line for failure in failures.values() for line in failure.said]
    aborted = next(filter(None, map(_MPI_ABORT.match, lines)), None)
    if aborted is not None:
        message = (
            f"rank {aborted[1]} of {group.world_size} failed first: it called MPI_Abort, and MPI "
            f"ended all ranks, with {launcher.how}."
        )
        return code, _with_error(message, aborted.string)
    message = (
        f"MPI's launcher must outlive the ranks; `mpiexec`, or the proxy by which it starts them, "
        f"ended before all {group.world_size} had. `mpiexec` ended with {launcher.how}."
    )
    if outcome.unfinished:
        message += f" {ranks_in_words(outcome.unfinished).capitalize()} had to be ended."
    return code, _with_error(message, last_error(launcher.said))


def _with_error(message: str, error: str) -> str:
    if not error:
        return message + " It wrote no error."
    return f"{message} Its last error:\n{textwrap.indent(error, '  ')}"


def _absent_message(outcome: Outcome, group: RankGroup) -> str:
    return (
        f"every rank must make its strategy; {ranks_in_words(outcome.absent)} of "
        f"{group.world_size} ended with exit code 0 and made none, and others waited in theirs "
        "for that: "
        f"{ranks_in_words(outcome.unfinished)} had to be ended. Let every rank come to "
        "`tfdp.DataParallelStrategy()`, and leave what only one of them shall do to later."
    )


def _timeout_message(options: RunOptions, outcome: Outcome, group: RankGroup) -> str:
    assert options.timeout_seconds is not None
    seconds = options.timeout_seconds
    return (
        f"`timeout` must cover the whole run; received {seconds:g} s, and after that "
        f"{ranks_in_words(outcome.unfinished)} of {group.world_size} still ran: all were ended. "
        f"Do `--timeout {10 * seconds:g}`, or look for what they wait for."
    )


def _trained_alone(options: RunOptions, alone: Sequence[int], group: RankGroup) -> tuple[int, str]:
    """Judges a run in which every rank ended with 0: right, unless a rank trained alone."""
    if group.world_size == 1 or not alone:
        return 0, ""
    config = tf_config(group.addresses, alone[0])
    return 1, (
        f"{group.world_size} processes must train as one, through a strategy that reads "
        f"`TF_CONFIG`; received a command whose {ranks_in_words(alone)} made none, so each of "
        f"these worked alone (rank {alone[0]} had `TF_CONFIG={config}`). "
        "Make `tfdp.DataParallelStrategy()` in the script, or start it without `tfdp run`: "
        f"`{_single_command(options.command)}`."
    )


def _single_command(command: Sequence[str]) -> str:
    python = ["python"] if command[0].endswith(".py") else []
    return shlex.join([*python, *(os.fspath(word) for word in command)])
