"""The stop of a training that a signal to one rank asks for: all ranks stop at the same point.

Python runs its handlers between two operations, not while TensorFlow runs a step, and a rank that
waits in a step for others cannot answer. So a thread hears the signal and answers the others.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import threading
import time

from tfdp.replicas import ProcessGroup

# Schedulers send the first; Slurm's `--signal=USR1@60` and spot instances' scripts the second.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_POLL_SECONDS = 0.1

# What Kubernetes, Slurm and `tfdp run` leave between SIGTERM and SIGKILL, unless told otherwise.
_GRACE_SECONDS = 30.0

_numbers = itertools.count()  # of trainings: all ranks begin them in the same order


class CommonStop:
    """The agreement of all ranks on the point of a training at which they stop.

    The points are those where `here` is called; all ranks come to the same ones in the same order.
    A rank that is asked to stop, or hears that another one is, says which point it comes to next,
    and it goes that far. The last of these points is where all stop: every rank comes to it,
    and none is beyond it.

    Signals are heard from `open` to `close`, in the main thread's process-wide handlers, unless a
    handler of the program's own stands there, or the signal is ignored.

    Args:
      processes: The processes that stop together.

    >>> from tfdp.replicas import OneProcess
    >>> stop = CommonStop(OneProcess())
    >>> stop.open()
    >>> stop.here() is None
    True
    >>> signal.raise_signal(signal.SIGTERM)
    >>> while stop.here() is None:
    ...     time.sleep(0.01)
    >>> stop.here()
    'SIGTERM to rank 0'
    >>> stop.close()
    """

    def __init__(self, processes: ProcessGroup) -> None:
        self._processes = processes
        self._key = f"the stop of training {next(_numbers)}"
        self._lock = threading.Lock()
        self._next = 0  # the point that this rank comes to next
        self._requested = False
        self._handlers: dict[int, object] = {}
        self._wakeup_before = -1
        self._stopped = self._warned = False
        self._last_point: float | None = None

    def open(self) -> None:
        """Begins to hear signals, and what other ranks heard."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before == signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, lambda *_: None)
                elif before != signal.SIG_IGN:
                    logging.getLogger("tfdp").warning(
                        "%s has a handler of the program's own, so it does not make Checkpoint "
                        "keep the training and stop.",
                        signal.Signals(number).name,
                    )
            if self._handlers:
                self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="tfdp-stop", daemon=True)
        self._thread.start()

    def here(self) -> str | None:
        """Returns what asked for a stop if all ranks stop at this point; else None.

        Raises:
          RankLostError: A rank is lost.
          CollectiveTimeoutError: A rank does not answer in time.
        """
        self._warn_if_far_apart()
        with self._lock:
            if not self._requested:
                self._next += 1
                return None
        posts = self._processes.wait_for_posts(self._key)
        said = {rank: post.value for rank, post in posts.items()}
        last = max(point for point, _ in said.values())
        if self._next < last:
            self._next += 1
            return None
        self._stopped = True
        asked = {rank: name for rank, (_, name) in said.items() if name}
        return " and ".join(f"{name} to rank {rank}" for rank, name in asked.items())

    def close(self) -> None:
        """Gives signals back their handlers; after a stop they are ignored, as the process ends."""
        if self._handlers:
            signal.set_wakeup_fd(self._wakeup_before)
        for number, before in self._handlers.items():
            signal.signal(number, signal.SIG_IGN if self._stopped else before)  # type: ignore[arg-type]
        os.close(self._writer)  # ends the thread
        self._thread.join()
        os.close(self._reader)

    def _listen(self) -> None:
        while True:
            heard = None
            if select.select([self._reader], [], [], _POLL_SECONDS)[0]:
                numbers = os.read(self._reader, 512)
                if not numbers:
                    return
                self._pass_on(numbers)
                heard = next((n for n in numbers if n in self._handlers), None)
            if self._requested or (heard is None and not self._processes.posted(self._key)):
                continue
            self._hear(heard)

    def _hear(self, number: int | None) -> None:
        """Says which point comes next, for a signal to this rank, or since others have said so."""
        name = None if number is None else signal.Signals(number).name
        with self._lock, contextlib.suppress(Exception):  # of the cluster: `here` raises it
            self._requested = True
            self._processes.post(self._key, [self._next, name])

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
