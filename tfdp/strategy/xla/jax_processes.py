"""The processes that have JAX's devices, which tell each other on a board what is no tensor."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from tfdp.base import hooks
from tfdp.cluster.control_channel import ControlChannel
from tfdp.cluster.rendezvous import Meeting
from tfdp.cluster.spec import Cluster
from tfdp.cluster.watchdog import Progress, Watchdog
from tfdp.communication.collectives import STOP_TRAINING
from tfdp.communication.collectives.meetings import Meetings
from tfdp.communication.replicas import OneProcess
from tfdp.errors import RankLostError
from tfdp.strategy.xla import pending

_TIMEOUT_SECONDS = 600.0

# The beginning of JAX' errors of programs, which are of several types.
_STATUS = re.compile("[A-Z_]+: ")

# What a process that waits for others at its end tells them.
_ENDED = "the end of its script"

# So long an error of JAX's waits for word of the process that it follows, and so long a program may
# go on without a process that is lost.
_CAUSE_SECONDS, _GRACE_SECONDS = 5.0, 2.0


class JaxProcesses(Meetings, OneProcess):
    """All of JAX's processes, with this one among them.

    Tensors travel in programs. A process is lost to the others with its connection, where it gives
    no sign of life for a minute, or where it goes on after an error and they wait for it; and every
    wait on the board has a deadline. Of a program that waits for a process which is lost nothing
    wakes Python: then a thread says which and why, and ends this process. A process that fails ends
    without JAX' own goodbye, for which all would have to come.

    Args:
      cluster: Which of how many processes this is.
      meeting: Their meeting.
      aborted_with_first: Whether JAX aborts this process where it loses the first one, since it is
        connected to that without a relay. Then it says so, and ends before.
    """

    def __init__(
        self, cluster: Cluster, meeting: Meeting, aborted_with_first: bool = False
    ) -> None:
        super().__init__()
        self._is_aborted = aborted_with_first and cluster.rank > 0
        self.rank, self.world_size = cluster.rank, cluster.world_size
        self.hosts = meeting.host_numbers
        self.board = ControlChannel(
            self.rank, self.world_size, meeting.connections, _TIMEOUT_SECONDS
        )
        self.settings = {STOP_TRAINING: lambda: False}
        # What is the process' own, whatever strategy asks.
        self._of_process = types.SimpleNamespace(error=None, uncaught=None)
        self._has_ended = threading.Event()
        hooks.put(sys, "excepthook", self._note_uncaught)
        self.board.on_failure(self._failed)
        # A program may take as long as it likes while all processes are in it.
        self._watchdog = Watchdog(self.board, self.progress, deadline_seconds=float("inf"))
        atexit.register(self._end)

    def with_devices(self, local_size: int) -> JaxProcesses:
        """Returns these processes as a strategy has them, with so many devices in each."""
        found = copy.copy(self)
        found.local_size = local_size
        return found

    @property
    def error(self) -> str | None:
        """The error with which the last step of this process ended, if it was caught."""
        found: str | None = self._of_process.error
        return found

    @error.setter
    def error(self, error: str | None) -> None:
        if hasattr(self, "_of_process"):
            self._of_process.error = error

    def progress(self) -> Progress:
        """Returns how far this process is in the programs of all."""
        steps, calls = pending.begun()
        return Progress(
            steps=steps,
            begun=calls,
            done=calls - (calls > 0 and pending.is_any()),
            operation="a program of all processes",
            error=self.error or "",
            settings={name: bool(setting()) for name, setting in self.settings.items()},
        )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises the error of another process in place of JAX's own; tells the others of any."""
        self.error = None
        try:
            yield
        except StopIteration:
            raise
        except (Exception, KeyboardInterrupt) as error:
            may_follow = _STATUS.match(str(error)) is not None
            failure = self.failure(_CAUSE_SECONDS if may_follow else 0)
            if failure is None or failure is error:
                self.error = _in_words(error)
                raise
            raise failure from error

    def failure(self, within_seconds: float) -> Exception | None:
        """Waits as others do, and gives up ranks that have ended, which nothing else does here."""
        deadline = time.monotonic() + within_seconds
        while self.board.failure is None and time.monotonic() < deadline:
            for rank in self.board.ended():
                self.board.lose(rank, self.board.end_of(rank, "a program of all processes"))
            self.board.wait_for_failure(0.05)
        return self.board.failure

    def _note_uncaught(
        self, original: Callable[..., Any], kind: Any, value: Any, trace: Any
    ) -> None:
        self._of_process.uncaught = _in_words(value)
        original(kind, value, trace)

    def _end(self) -> None:
        """Says goodbye, after all have come to their end: JAX's own would not hear of an error."""
        if self._of_process.uncaught is None and self.board.failure is None:
            self.error = _ENDED
            self.board.post(_ENDED)
            self._has_ended.set()
            while len(self.board.posted(_ENDED)) < self.world_size:
                if self.board.failure is not None:
                    _end_here(0)
                time.sleep(0.05)
            self._watchdog.stop()
            self.board.close()
            return
        self._watchdog.stop()
        self._end_at_once(self._of_process.uncaught or _in_words(self.board.failure))

    def _end_at_once(self, error: str) -> None:
        """Says goodbye with an error, and ends without what waits for all processes."""
        self.board.close(error)
        _end_here()

    def _failed(self, error: Exception) -> None:
        """Ends this process where it waits for another one in vain, or for JAX to abort it."""
        if self._has_ended.is_set():
            _end_here(0)
        first_is_lost = isinstance(error, RankLostError) and error.rank == 0
        is_of_jax = self._is_aborted and first_is_lost
        if is_of_jax or pending.is_any():  # gloo may abort as well, where its data end midway
            print(_in_words(error), file=sys.stderr, flush=True)
        if is_of_jax:
            _end_here()
        threading.Thread(target=self._end_vain_wait, name="tfdp-end", daemon=True).start()

    def _end_vain_wait(self) -> None:
        since = time.monotonic()
        while not self._has_ended.wait(0.1):
            if not pending.is_any():
                since = time.monotonic()
            elif time.monotonic() - since > _GRACE_SECONDS:
                self._end_at_once(_in_words(self.board.failure))


def _end_here(code: int = 1) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _in_words(error: BaseException | None) -> str:
    """Returns an error's text: of some the first line tells, of others the last."""
    return f"{type(error).__name__}: {str(error).strip()}"[:2000]
