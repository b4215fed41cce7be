"""The processes that have JAX's devices, which tell each other on a board what is no tensor."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import numpy as np

from tfdp import hooks
from tfdp.cluster import secret
from tfdp.cluster.board import Board
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.spec import Cluster, host_of, join_address
from tfdp.collectives import introductions
from tfdp.collectives.meetings import Meetings
from tfdp.replicas import OneProcess, ProcessGroup
from tfdp.xla import pending
from tfdp.xla._jax import coordinator_address, jax
from tfdp.xla.arrays import of_first

_STARTUP_SECONDS, _TIMEOUT_SECONDS = 300.0, 600.0

# The bytes in which process 0 tells where it listens.
_MOST_BYTES = 1024


# The beginning of JAX' errors of programs, which are of several types.
_STATUS = re.compile("[A-Z_]+: ")

# So long a program may go on without a process that has ended, or left it with an error.
_GRACE_SECONDS = 5


class Processes(Meetings, OneProcess):
    """All of JAX's processes, with this one among them.

    Tensors travel in programs. A process is lost to the others with its connection, and every wait
    has a deadline. Of a program that waits for a process which is lost nothing wakes Python: then a
    thread says which and why, and ends this process. A process that fails ends without JAX' own
    goodbye, for which all would have to come.

    Args:
      local_size: The number of devices of each process.
    """

    def __init__(self, local_size: int) -> None:
        super().__init__(local_size)
        self.rank, self.world_size = jax.process_index(), jax.process_count()
        address, made = self._of_first()
        cluster = Cluster(self.rank, self.world_size, address, source="jax.distributed")
        own = introductions.own(local_size)
        own["versions"] |= {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
        shared = secret.in_environment() or made
        meeting = meet(cluster, own, introductions.difference, _STARTUP_SECONDS, shared)
        self.hosts = meeting.host_numbers
        self.board = Board(self.rank, self.world_size, meeting.connections, _TIMEOUT_SECONDS)
        self.error: str | None = None
        self._uncaught: str | None = None
        self._ends = threading.Event()
        hooks.put(sys, "excepthook", self._note_uncaught)
        atexit.register(self._end)
        threading.Thread(target=self._watch, name="tfdp-watch", daemon=True).start()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises the error of another process in place of JAX's own; tells the others of any."""
        if self.error is not None:
            self.error = None
            self.board.sign({"text": "going on", "error": None})
        try:
            yield
        except StopIteration:
            raise
        except (Exception, KeyboardInterrupt) as error:
            may_follow = _STATUS.match(str(error)) is not None
            failure = self._failure_within(_GRACE_SECONDS if may_follow else 0)
            if failure is None or failure is error:
                self._tell(error)
                raise
            raise failure from error

    def _tell(self, error: BaseException) -> None:
        self.error = _in_words(error)
        self.board.sign({"text": f"after {self.error}", "error": self.error})

    def _failure_within(self, seconds: float) -> Exception | None:
        deadline = time.monotonic() + seconds
        while self.board.failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.board.failure

    def _note_uncaught(
        self, original: Callable[..., Any], kind: Any, value: Any, trace: Any
    ) -> None:
        self._uncaught = _in_words(value)
        original(kind, value, trace)

    def _end(self) -> None:
        self._ends.set()
        failure = self.board.failure
        if self._uncaught is None and failure is None:
            self.board.close()
            return
        self._end_at_once(self._uncaught or _in_words(failure))

    def _end_at_once(self, error: str) -> None:
        """Says goodbye with an error, and ends without what waits for all processes."""
        self.board.close(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(1)

    def _watch(self) -> None:
        waited = 0
        while not self._ends.wait(1.0):
            is_vain = pending.is_any() and self._lost_one() is not None
            waited = waited + 1 if is_vain else 0
            if waited > _GRACE_SECONDS:
                rank, reason = self._lost_one() or (None, "")
                if rank is not None:
                    self.board.lose(rank, reason)
                failure = self.board.failure
                said = f"{type(failure).__name__}: {failure}"
                print(said, file=sys.stderr, flush=True)
                self._end_at_once(said)

    def _lost_one(self) -> tuple[int | None, str] | None:
        """Returns the rank that a program waits for in vain, and why; None: there is none."""
        if self.board.failure is not None:
            return None, ""
        for rank in self.board.ended():
            return rank, self.board.end_of(rank, "a program of all processes")
        if self.error is None:
            for rank, (_, sign) in self.board.signs().items():
                if sign["error"]:
                    return rank, f"it left a program of all processes with {sign['error']}"
        return None

    def _of_first(self) -> list[str]:
        """Returns where process 0 listens, and a secret for processes that have none."""
        told = np.zeros(_MOST_BYTES, np.uint8)
        if self.rank == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                port = free.getsockname()[1]
            address = join_address(host_of(str(coordinator_address())), port)
            text = json.dumps([address, secret.made()]).encode()
            told[: len(text)] = np.frombuffer(text, np.uint8)
        found: list[str] = json.loads(of_first(told).tobytes().rstrip(b"\0"))
        return found


def _in_words(error: BaseException | None) -> str:
    """Returns an error's text: of some the first line tells, of others the last."""
    return f"{type(error).__name__}: {str(error).strip()}"[:2000]


@functools.cache
def joined(local_size: int) -> ProcessGroup:
    """Returns JAX's processes, which meet in the first call; all must call it together.

    Args:
      local_size: The number of devices of each process.

    Raises:
      ClusterError: They do not come, or have other versions.
    """
    return OneProcess(local_size) if jax.process_count() == 1 else Processes(local_size)
