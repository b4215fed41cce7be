"""The supervision of the ranks: to wait for them, pass signals on, and end all when one fails."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from tfdp.launch.starting import RankProcess
from tfdp.launch.verdict import SAME_TIME_SECONDS, Failure, Outcome

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSING = (signal.SIGTSTP, signal.SIGCONT)

# The steps after a failure or the time limit: SIGTERM, and SIGKILL after the grace period.
GRACE_SECONDS = 5.0
_AFTER_FAILURE = ((0.0, signal.SIGTERM), (GRACE_SECONDS, signal.SIGKILL))

# The time between two checks whether others wait for a rank that has ended with 0.
_LOOK_SECONDS = 1.0

# A rank may fail because another rank is dying, before the other has ended.
LOST_RANK_SECONDS = 3.0

# The steps after a signal to the launcher, if ranks still run. A job scheduler's SIGTERM leaves
# 30 s for a checkpoint (Kubernetes' and Slurm's default); Ctrl-C is meant to be quick.
_AFTER_SIGINT = ((5.0, signal.SIGTERM), (10.0, signal.SIGKILL))
_AFTER_OTHERS = ((30.0, signal.SIGKILL),)

# One Ctrl-C may reach the launcher twice, from the terminal and from a wrapper that passes it on.
_SECOND_CTRL_C_SECONDS = 1.0


class ReceivedSignals:
    """A collector of signals, which do not act while it is open.

    A signal that was ignored stays ignored, as `nohup` needs. Outside the main thread, where Python
    receives no signals, only :meth:`broken` adds one.

    >>> with ReceivedSignals() as received:
    ...     received.broken()
    ...     received.take()
    [13]
    """

    def __init__(self) -> None:
        self._before: dict[int, object] = {}

    def __enter__(self) -> ReceivedSignals:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in (*ENDING, *PAUSING):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there is something to :meth:`take`."""
        return self._reader

    def broken(self) -> None:
        """Adds SIGPIPE, from any thread: nobody reads the launcher's output."""
        os.write(self._writer, bytes([signal.SIGPIPE]))

    def take(self) -> list[int]:
        """Returns the numbers received since the last call, in order."""
        try:
            return list(os.read(self._reader, 512))
        except BlockingIOError:
            return []


class Supervisor:
    """The supervisor of the ranks of one run.

    Args:
      ranks: The started ranks.
      received: The signals to the launcher.
      describe: Returns what is known of a failed rank by now.
      absent: Returns those of the ranks that ended with 0 for whose strategy others wait.
      timeout_seconds: The limit of the whole run, or None.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        received: ReceivedSignals,
        describe: Callable[[RankProcess], Failure],
        absent: Callable[[Sequence[int]], Sequence[int]],
        timeout_seconds: float | None,
    ) -> None:
        self._ranks = ranks
        self._received = received
        self._describe = describe
        self._absent = absent
        self._limit = time.monotonic() + (timeout_seconds or float("inf"))
        self._to_send: list[tuple[float, int]] = []  # when, which signal
        self._signal: int | None = None
        self._signalled_at = float("-inf")
        self._outcome: Outcome | None = None

    def supervise(self) -> Outcome:
        """Waits until nothing of any rank is left, and returns how the run ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._received, selectors.EVENT_READ)
            for rank in self._ranks:
                selector.register(rank.report, selectors.EVENT_READ, rank)
            while not all(rank.finished for rank in self._ranks):
                wait = max(0.0, self._next_deadline() - time.monotonic())
                for key, _ in selector.select(None if wait == float("inf") else wait):
                    if key.data is None:
                        self._take_signals()
                        continue
                    key.data.read_report(time.monotonic())
                    if key.data.finished:
                        selector.unregister(key.fileobj)
                self._act(time.monotonic())
        return self._outcome or self._state()

    def _next_deadline(self) -> float:
        deadlines = [when for when, _ in self._to_send]
        if self._outcome is None:
            deadlines += [self._limit, self._failure_deadline()]
            if self._ended_well():
                deadlines.append(time.monotonic() + _LOOK_SECONDS)
        return min(deadlines, default=float("inf"))

    def _failure_deadline(self) -> float:
        """Returns when the other ranks are ended; by then the cause has shown itself."""
        failures = [self._describe(rank) for rank in self._ranks if rank.failed]
        if not failures:
            return float("inf")
        unclear = all(failure.is_consequence for failure in failures)
        wait = LOST_RANK_SECONDS if unclear else SAME_TIME_SECONDS
        return min(failure.ended_at for failure in failures) + wait

    def _ended_well(self) -> list[int]:
        return [rank.rank for rank in self._ranks if rank.returncode == 0]

    def _act(self, now: float) -> None:
        if self._outcome is None and self._state().absent:
            self._end(False, _AFTER_FAILURE)
        if self._outcome is None and now >= min(self._limit, self._failure_deadline()):
            timed_out = now < self._failure_deadline()
            self._end(timed_out, _AFTER_FAILURE)
        for due in [entry for entry in self._to_send if entry[0] <= now]:
            self._to_send.remove(due)
            self._send(due[1])

    def _take_signals(self) -> None:
        for number in self._received.take():
            now = time.monotonic()
            if number == signal.SIGTSTP:
                self._send(number)
                os.kill(os.getpid(), signal.SIGSTOP)  # as SIGTSTP would have done
            elif number == signal.SIGCONT:
                self._send(number)
            elif number == signal.SIGPIPE:  # nobody reads the output: end as any program does
                self._signal = self._signal or number
                self._end(False, _AFTER_FAILURE)
            elif number in ENDING:
                self._pass_on(number, now)

    def _pass_on(self, number: int, now: float) -> None:
        again = self._signal is not None and now > self._signalled_at + _SECOND_CTRL_C_SECONDS
        if number == signal.SIGINT and again:
            self._send(signal.SIGKILL)
            return
        self._send(number)
        if self._signal is None:
            self._signal, self._signalled_at = number, now
            self._end(False, _AFTER_SIGINT if number == signal.SIGINT else _AFTER_OTHERS)

    def _end(self, timed_out: bool, steps: Sequence[tuple[float, int]]) -> None:
        """Settles how the run ends, and plans the signals to the ranks that still run."""
        now = time.monotonic()
        self._to_send += [(now + seconds, number) for seconds, number in steps]
        self._outcome = self._outcome or self._state(timed_out)

    def _state(self, timed_out: bool = False) -> Outcome:
        failed = tuple(rank.rank for rank in self._ranks if rank.failed)
        return Outcome(
            signal=self._signal,
            timed_out=timed_out,
            failed=failed,
            absent=() if failed else tuple(self._absent(self._ended_well())),
            unfinished=tuple(rank.rank for rank in self._ranks if rank.returncode is None),
        )

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            if not rank.finished:
                rank.send(number)
