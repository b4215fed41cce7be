"""The supervision of the ranks: to wait for them, pass signals on, and end all when one fails."""

from __future__ import annotations

import enum
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence

from tfdp.cluster.launch.rank_process import RankProcess
from tfdp.cluster.launch.verdict import SAME_TIME_SECONDS, Failure, Outcome

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PAUSING = (signal.SIGTSTP, signal.SIGCONT)
# A training with a Checkpoint stops at it; what else it means is the program's own affair.
STOPPING = (signal.SIGUSR1,)

# The steps after a failure or the time limit: SIGTERM, and SIGKILL after the grace period.
GRACE_SECONDS = 5.0
_AFTER_FAILURE = ((0.0, signal.SIGTERM), (GRACE_SECONDS, signal.SIGKILL))

# The time between two looks for orders, hangs, and others that wait for one that has ended with 0.
_LOOK_SECONDS = 1.0

# A rank may fail because another rank is dying, before the other has ended.
LOST_RANK_SECONDS = 3.0

# The steps after a signal to the launcher, if ranks still run. A job scheduler's SIGTERM leaves
# 30 s for a checkpoint (Kubernetes' and Slurm's default); Ctrl-C is meant to be quick.
_AFTER_SIGINT = ((5.0, signal.SIGTERM), (10.0, signal.SIGKILL))
_AFTER_OTHERS = ((30.0, signal.SIGKILL),)

# The steps after the end of all ranks, if MPI's launcher still runs.
_AFTER_THE_RANKS = ((5.0, signal.SIGTERM), (10.0, signal.SIGKILL))

# One Ctrl-C may reach the launcher twice, from the terminal and from a wrapper that passes it on.
_SECOND_CTRL_C_SECONDS = 1.0


class Order(enum.Enum):
    """What a supervisor is told from outside."""

    STOP = "stop at a checkpoint"  # for another number of ranks to go on
    END = "end now"  # for the ranks of another host have failed


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
            for number in (*ENDING, *PAUSING, *STOPPING):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there is something to :meth:`take`."""
        return self._reader

    def within(self, seconds: float) -> int | None:
        """Waits, and returns the first signal that ends a run; None if none came in that time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self._reader], [], [], left)
            for number in self.take():
                if number in (*ENDING, *STOPPING, signal.SIGPIPE):
                    return number
        return None

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
      end: The monotonic time at which the limit ends the run; infinite without one.
      order: Asked once a second for an order.
      hung: Asked once a second which rank hangs, in words.
      is_apart: Returns whether the others go on without a rank that has failed.
      start_again: Starts such a rank again, and returns its process; None: it stays away.
      launcher: MPI's launcher, if it starts the ranks.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        received: ReceivedSignals,
        describe: Callable[[RankProcess], Failure],
        absent: Callable[[Sequence[int]], Sequence[int]],
        end: float,
        order: Callable[[], Order | None],
        hung: Callable[[], str],
        is_apart: Callable[[RankProcess], bool] = lambda rank: False,
        start_again: Callable[[RankProcess], RankProcess | None] = lambda rank: None,
        launcher: RankProcess | None = None,
    ) -> None:
        self._ranks = list(ranks)
        self._away: set[RankProcess] = set()  # who has failed, and does not end the others
        self._is_apart, self._start_again = is_apart, start_again
        self._received = received
        self._describe = describe
        self._absent = absent
        self._launcher = launcher
        self._dismissed = launcher is None
        self._order = order
        self._hung, self._hangs = hung, ""
        self._resized = self._elsewhere = self._wished = False
        self._limit = end
        self._to_send: list[tuple[float, int]] = []  # when, which signal
        self._signal: int | None = None
        self._signalled_at = float("-inf")
        self._outcome: Outcome | None = None

    def supervise(self) -> Outcome:
        """Waits until nothing of any rank is left, and returns how the run ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._received, selectors.EVENT_READ)
            everyone = [*self._ranks, *filter(None, [self._launcher])]
            for process in everyone:
                selector.register(process.report, selectors.EVENT_READ, process)
            while not all(process.finished for process in everyone):
                wait = max(0.0, self._next_deadline() - time.monotonic())
                for key, _ in selector.select(None if wait == float("inf") else wait):
                    if key.data is None:
                        self._take_signals()
                        continue
                    key.data.read_report(time.monotonic())
                    if key.data.finished:
                        selector.unregister(key.fileobj)
                self._act(time.monotonic())
                for process in self._come_again():
                    selector.register(process.report, selectors.EVENT_READ, process)
                    everyone.append(process)
        return self._outcome or self._state()

    def _come_again(self) -> list[RankProcess]:
        """Starts ranks again without which the others go on, where that is to be."""
        if self._outcome is not None:
            return []
        came = []
        for place, rank in enumerate(self._ranks):
            if not (rank.finished and rank.failed) or rank in self._away:
                continue
            if not self._others_go_on(rank):
                continue
            again = self._start_again(rank)
            if again is None:
                self._away.add(rank)
            else:
                self._ranks[place] = again
                came.append(again)
        return came

    def _others_go_on(self, rank: RankProcess) -> bool:
        others = [each for each in self._ranks if each is not rank]
        return self._is_apart(rank) and any(each.returncode in (None, 0) for each in others)

    def _failures(self) -> list[RankProcess]:
        """Returns the ranks whose failure ends the others."""
        failed = [rank for rank in self._ranks if rank.failed]
        if len(failed) < len(self._ranks):
            failed = [rank for rank in failed if not self._others_go_on(rank)]
        return failed

    def _next_deadline(self) -> float:
        deadlines = [when for when, _ in self._to_send]
        if self._outcome is None:
            looks_again = time.monotonic() + _LOOK_SECONDS
            deadlines += [self._limit, self._failure_deadline(), looks_again]
        return min(deadlines, default=float("inf"))

    def _failure_deadline(self) -> float:
        """Returns when the other ranks are ended; by then the cause has shown itself."""
        failures = [self._describe(rank) for rank in self._failures()]
        if not failures and not self._launcher_first():
            return float("inf")
        clear = self._launcher_first() or not all(failure.is_consequence for failure in failures)
        wait = SAME_TIME_SECONDS if clear else LOST_RANK_SECONDS
        ends = [failure.ended_at for failure in failures]
        ends += [self._launcher.ended_at] if self._launcher else []
        return min(ends) + wait

    def _act(self, now: float) -> None:
        if self._launcher is not None:
            self._mind(self._launcher, now)
        if self._outcome is None and self._state().absent:
            self._end(False, _AFTER_FAILURE)
        if self._outcome is None and now >= min(self._limit, self._failure_deadline()):
            timed_out = now < self._failure_deadline()
            self._end(timed_out, _AFTER_FAILURE)
        if self._outcome is None:
            self._follow(self._order())
        if self._outcome is None and (hangs := self._hung()):
            self._hangs = hangs
            self._end(False, _AFTER_FAILURE)
        for due in [entry for entry in self._to_send if entry[0] <= now]:
            self._to_send.remove(due)
            self._send(due[1])

    def _follow(self, order: Order | None) -> None:
        """Asks the ranks to stop, by a signal to one that runs, which tells the others."""
        running = [rank for rank in self._ranks if rank.returncode is None]
        if order is Order.STOP and running and not (self._resized or self._wished):
            self._resized = True
            running[0].send(STOPPING[0])
        elif order is Order.END:
            self._elsewhere = True
            self._end(False, _AFTER_FAILURE)

    def _mind(self, launcher: RankProcess, now: float) -> None:
        """Leaves ranks that MPI's launcher no longer starts, and the launcher after its ranks."""
        if launcher.returncode is not None:
            for rank in self._ranks:
                rank.let_go()
        if not self._dismissed and self._all_finished():
            self._dismissed = True
            self._to_send += [(now + seconds, number) for seconds, number in _AFTER_THE_RANKS]

    def _launcher_first(self) -> bool:
        """Returns whether MPI's launcher ended before the ranks, and none had failed by then.

        If all supervisors were killed, they were so with the proxy by which it starts them.
        """
        if self._launcher is None:
            return False
        if all(rank.failed and not rank.told for rank in self._ranks):
            return True
        if self._launcher.returncode is None:
            return False
        before = [rank for rank in self._ranks if self._of_itself(rank)]
        return len(before) < len(self._ranks) and not any(rank.failed for rank in before)

    def _of_itself(self, rank: RankProcess) -> bool:
        """Returns whether a rank that has ended did so while MPI's launcher ran.

        A supervisor that told nothing was killed, maybe by the launcher in its last moments.
        """
        if self._launcher is None or self._launcher.returncode is None:
            return True
        last_moments = 0.0 if rank.told else SAME_TIME_SECONDS
        return rank.ended_at + last_moments <= self._launcher.ended_at

    def _all_finished(self) -> bool:
        return all(rank.finished for rank in self._ranks)

    def _take_signals(self) -> None:
        for number in self._received.take():
            now = time.monotonic()
            if number == signal.SIGTSTP:
                self._send(number)
                os.kill(os.getpid(), signal.SIGSTOP)  # as SIGTSTP would have done
            elif number in (signal.SIGCONT, *STOPPING):
                if number in STOPPING:  # somebody wants the end
                    self._wished, self._resized = True, False
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
        failed = tuple(r.rank for r in self._failures() if self._of_itself(r))
        ended_well = [rank.rank for rank in self._ranks if rank.returncode == 0]
        return Outcome(
            signal=self._signal,
            timed_out=timed_out,
            failed=failed,
            absent=() if failed else tuple(self._absent(ended_well)),
            unfinished=tuple(rank.rank for rank in self._ranks if rank.returncode is None),
            launcher_first=self._launcher_first(),
            resized=self._resized,
            elsewhere=self._elsewhere,
            wished=self._wished,
            hangs=self._hangs,
        )

    def _send(self, number: int) -> None:
        for rank in self._ranks:
            if not rank.finished:
                rank.send(number)
        # MPI's launcher ends by itself after its ranks. Who kills it kills all that it has started.
        if self._launcher and (number == signal.SIGKILL or self._all_finished()):
            self._launcher.send(number)
