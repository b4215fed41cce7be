"""The points of a training at which all ranks do what one of them was asked for: keep it, or stop.

Python runs its signal handlers between two operations, not while TensorFlow runs a step, and a rank
that waits in a step for others cannot answer them. So a thread hears signals, looks at the clock,
and answers the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time

from tfdp.base.unique_numbers import unique_number
from tfdp.communication.replicas import ProcessGroup

# Schedulers send the first; Slurm's `--signal=USR1@60` and spot instances' scripts the second.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

#: What is asked for when the interval is over.
INTERVAL = "the interval"

_POLL_SECONDS = 0.1

# What Kubernetes, Slurm and `tfdp run` leave between SIGTERM and SIGKILL, unless told otherwise.
_GRACE_SECONDS = 30.0

# Signals that are ignored since a training was stopped here, and not by the program's wish.
_ignored_after_a_stop: set[int] = set()

_open: set[AgreedPoints] = set()


class AgreedPoints:
    """The agreement of all ranks on points of a training.

    The points are where `here` is called; all ranks come to the same ones in the same order. A rank
    that is asked for something, or hears that another one is, says which point it comes to next,
    and it goes that far. The last of these points is the agreed one: every rank comes to it, and
    none is beyond it. This can be repeated.

    Signals are heard from `open` to `close`, in the main thread's process-wide handlers, unless a
    handler of the program's own stands there, or the signal is ignored.

    Attributes:
      training: The number of the training, the same on all ranks.

    Args:
      processes: The processes that agree.
      every_seconds: An interval after which rank 0 asks by itself; None: never.

    >>> from tfdp.communication.replicas import OneProcess
    >>> points = AgreedPoints(OneProcess())
    >>> points.open()
    >>> points.here()
    {}
    >>> signal.raise_signal(signal.SIGTERM)
    >>> while not (asked := points.here()):
    ...     time.sleep(0.01)
    >>> asked
    {0: 'SIGTERM'}
    >>> points.close()
    """

    def __init__(self, processes: ProcessGroup, every_seconds: float | None = None) -> None:
        self._processes = processes
        self._every_seconds = every_seconds
        self.training, self._round = unique_number("trainings"), 0
        self._lock = threading.Lock()
        self._next = 0  # the point that this rank comes to next
        self._asked: str | None = None  # of this rank, and not told yet
        self._told = False
        self._asked_at = time.monotonic()
        self._handlers: dict[int, object] = {}
        self._wakeup_before = -1
        self._unanswered: int | None = None  # the last signal that no agreed point has answered
        self._warned = False
        self._last_point: float | None = None

    def open(self) -> None:
        """Begins to hear signals, and what other ranks are asked for."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():
            self._handle_signals()
        else:
            logging.getLogger("tfdp").warning(
                "`fit` runs in a thread, where Python hears no signals: SIGTERM does not make "
                "Checkpoint keep the training. Call `fit` in the main thread."
            )
        _open.add(self)
        self._thread = threading.Thread(target=self._listen, name="tfdp-agreement", daemon=True)
        self._thread.start()

    def here(self) -> dict[int, str]:
        """Returns by rank what was asked for, a signal's name or `INTERVAL`, if this is the point.

        Raises:
          RankLostError: A rank is lost.
          CollectiveTimeoutError: A rank does not answer in time.
        """
        self._warn_if_far_apart()
        with self._lock:
            if not self._told:
                self._next += 1
                return {}
        posts = self._processes.wait_for_posts(self._key)
        said = {rank: post.value for rank, post in posts.items()}
        if any(point is None for point, _ in said.values()):
            return {}  # a rank has passed its last point
        agreed = self._next == max(point for point, _ in said.values())
        with self._lock:
            self._next += 1
            if agreed:
                self._round, self._told = self._round + 1, False
                self._asked_at = time.monotonic()
                if said[self._processes.rank][1] != INTERVAL and self._asked is None:
                    self._unanswered = None
        return {rank: asked for rank, (_, asked) in said.items() if asked and agreed}

    def close(self, ends: bool = False, well: bool = False) -> None:
        """Gives signals back their handlers.

        Args:
          ends: Whether the process ends now, in which it is not to be disturbed: the signals are
            ignored.
          well: Whether all points were passed. A signal that came after the last one is raised
            again then.
        """
        with self._lock, contextlib.suppress(Exception):  # of the cluster
            if not self._told and self._processes.world_size > 1:
                self._told = True
                self._processes.post(self._key, [None, None])
        _open.discard(self)
        if self._handlers:
            signal.set_wakeup_fd(self._wakeup_before)
        for number, before in self._handlers.items():
            signal.signal(number, signal.SIG_IGN if ends else before)  # type: ignore[arg-type]
        if ends:
            _ignored_after_a_stop.update(self._handlers)
        os.close(self._writer)  # ends the thread
        self._thread.join()
        os.close(self._reader)
        if well and self._unanswered is not None:
            signal.raise_signal(self._unanswered)

    def leave_to_parent(self) -> None:
        """Gives a forked child, which is no rank, the handlers from before, and no part in this."""
        if self._handlers:
            signal.set_wakeup_fd(-1)
        for number, before in self._handlers.items():
            signal.signal(number, before)  # type: ignore[arg-type]
        os.close(self._writer)
        os.close(self._reader)

    def ask(self, what: str) -> None:
        """Asks for something at the next point that all ranks can agree on, from any thread."""
        with self._lock:
            self._asked = what
        self._tell()

    @property
    def _key(self) -> str:
        return f"the point {self._round} of training {self.training}"

    def _handle_signals(self) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before == signal.SIG_IGN and number in _ignored_after_a_stop:
                before = signal.SIG_DFL
            if before == signal.SIG_DFL:
                signal.signal(number, lambda *_: None)
                self._handlers[number] = before
            elif before != signal.SIG_IGN:
                logging.getLogger("tfdp").warning(
                    "%s has a handler of the program's own, so it does not make Checkpoint keep "
                    "the training and stop.",
                    signal.Signals(number).name,
                )
        if self._handlers:
            self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def _listen(self) -> None:
        while True:
            if select.select([self._reader], [], [], _POLL_SECONDS)[0]:
                numbers = os.read(self._reader, 512)
                if not numbers:
                    return
                self._pass_on(numbers)
                for number in numbers:
                    if number in self._handlers:
                        self._unanswered = number
                        self.ask(signal.Signals(number).name)
            elif self._is_time():
                self.ask(INTERVAL)
            elif self._asked or self._processes.posted(self._key):
                self._tell()

    def _is_time(self) -> bool:
        if self._every_seconds is None or self._processes.rank != 0 or self._told or self._asked:
            return False
        return time.monotonic() - self._asked_at >= self._every_seconds

    def _tell(self) -> None:
        """Tells the others which point comes next, once in a round."""
        with self._lock:
            if self._told:
                return  # what was asked for since is told in the next round
            asked, self._asked, self._told = self._asked, None, True
            with contextlib.suppress(Exception):  # of the cluster: `here` raises it
                self._processes.post(self._key, [self._next, asked])

    def _pass_on(self, numbers: bytes) -> None:
        """Tells whom Python told of signals before."""
        if self._wakeup_before != -1:
            with contextlib.suppress(OSError):
                os.write(self._wakeup_before, numbers)

    def _warn_if_far_apart(self) -> None:
        now = time.monotonic()
        since = 0.0 if self._last_point is None else now - self._last_point
        self._last_point = now
        if since > _GRACE_SECONDS and not self._warned:
            self._warned = True
            logging.getLogger("tfdp").warning(
                "A training can stop between two executions, and after an epoch's evaluation. "
                "Here %.0f s lay between, and after SIGTERM schedulers leave %.0f s unless they "
                "are told otherwise: ask for more (Slurm: `--signal=TERM@%.0f`; Kubernetes: "
                "`terminationGracePeriodSeconds`), or lower `steps_per_execution`.",
                since,
                _GRACE_SECONDS,
                2 * since,
            )


_mask_before_fork: list[set[int]] = []  # one, in the instant of a fork


def _block_signals() -> None:
    """Lets a signal to a forked child wait until that has its own handlers again.

    Before, it would write into the pipe of its parent.
    """
    if _open:
        _mask_before_fork.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))


def _unblock_signals() -> None:
    if _mask_before_fork:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask_before_fork.pop())


def _leave_to_parent() -> None:
    for points in list(_open):
        points.leave_to_parent()
    _open.clear()
    _unblock_signals()


os.register_at_fork(
    before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_leave_to_parent
)
