"""The driver of collectives: polls their requests, in the caller's thread or in one of its own."""

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Callable

from tfdp.communication.engines.host.byte_transport import Request, all_done
from tfdp.communication.engines.host.collective_programs import HostCollective, Strand

# A poll that finds nothing done is repeated at once this often; then the thread sleeps between
# polls, so that a rank that waits leaves its core to one that computes.
_EAGER_POLLS = 100
_FIRST_SLEEP_SECONDS = 20e-6
_LONGEST_SLEEP_SECONDS = 500e-6

# Of strands that begin in turn, as many are under way at most. Ranks of a host that share a link
# get unequal parts of it. Those that got more would end sooner, and the TCP streams that are left
# may take long to find out that the link is theirs (under BBR); so they wait for each other.
_MOST_UNDER_WAY = 4


class _Run:
    """A collective that was begun, with what its strands wait for."""

    def __init__(self, collective: HostCollective) -> None:
        self._later = collections.deque(collective.strands)
        self._waiting: list[tuple[Strand, list[Request]]] = []
        for _ in range(1 if collective.in_turn else len(collective.strands)):
            self._begin_another()

    @property
    def ended(self) -> bool:
        return not self._waiting

    def advance(self) -> bool:
        """Resumes the strands whose requests are done; returns whether there were any."""
        ended, resumed = False, False
        for strand, requests in self._waiting:
            while all_done(requests):
                resumed = True
                following = next(strand, None)
                if following is None:
                    ended = True
                    break
                requests += following
        if ended:
            self._waiting = [each for each in self._waiting if each[1]]
        if resumed and self._later and len(self._waiting) < _MOST_UNDER_WAY:
            self._begin_another()
        return resumed

    def _begin_another(self) -> None:
        strand = self._later.popleft()
        self._waiting.append((strand, list(next(strand, ()))))


@dataclasses.dataclass
class _Handed:
    """A collective that was handed to the driver's thread."""

    run: _Run
    when_done: Callable[[Exception | None], None]


class Driver:
    """Runs collectives until they are done, or until the work of all ranks is ended.

    A wait has no deadline here: who watches the ranks calls `abort`.

    Attributes:
      begun: The number of collectives begun.
      done: The number of collectives done.
      operation: The collective begun last, in words.

    Args:
      on_error: Called with an error that the transport raises, or that ranks differ.
    """

    def __init__(self, on_error: Callable[[Exception], None] = lambda error: None) -> None:
        self._on_error = on_error
        self._failure: str | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._handed: collections.deque[_Handed] = collections.deque()
        self._thread: threading.Thread | None = None
        self.begun = self.done = 0
        self.operation = ""

    def run(self, collective: HostCollective, text: str) -> None:
        """Runs a collective in the calling thread.

        Raises:
          RuntimeError: The work of all ranks was ended.
          Exception: What the transport raises.
        """
        self._begin(text)
        polls = _Polls()
        try:
            run = _Run(collective)
            while not run.ended:
                self._check()
                polls.pause(run.advance())
        except Exception as error:
            self._on_error(error)
            raise
        self._end()

    def hand_over(
        self, collective: HostCollective, text: str, when_done: Callable[[Exception | None], None]
    ) -> None:
        """Begins a collective and returns at once; the driver's thread calls `when_done`.

        Args:
          collective: The collective.
          text: The collective in words.
          when_done: Called with None, or with the error that ended the collective.

        Raises:
          RuntimeError: The work of all ranks was ended.
        """
        self._begin(text)
        handed = _Handed(_Run(collective), when_done)
        with self._lock:
            self._handed.append(handed)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._poll_handed, name="tfdp-collectives", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def abort(self, message: str) -> None:
        """Ends all collectives, now and later, with `message`."""
        with self._lock:
            self._failure = self._failure or message
            self._changed.notify()

    def _begin(self, text: str) -> None:
        self._check()
        with self._lock:
            self.begun += 1
            self.operation = text

    def _end(self) -> None:
        with self._lock:
            self.done += 1

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(self._failure)

    def _poll_handed(self) -> None:
        polls = _Polls()
        running: list[_Handed] = []
        while True:
            with self._lock:
                while not running and not self._handed:
                    self._changed.wait()
                if self._handed:
                    polls = _Polls()
                    running += self._handed
                    self._handed.clear()
            left, resumed = [], False
            for handed in running:
                try:
                    self._check()
                    resumed |= handed.run.advance()
                    if not handed.run.ended:
                        left.append(handed)
                        continue
                    self._end()
                    error = None
                except Exception as caught:
                    error = caught
                    self._on_error(caught)
                handed.when_done(error)
            running = left
            if running:
                polls.pause(resumed)


class _Polls:
    """The pauses between the polls of a wait: none at first, then longer and longer ones."""

    def __init__(self) -> None:
        self._count = 0
        self._seconds = _FIRST_SLEEP_SECONDS

    def pause(self, resumed: bool) -> None:
        """Pauses after a poll; `resumed` says whether something that was waited for had come."""
        if resumed:
            self._count, self._seconds = 0, _FIRST_SLEEP_SECONDS
            return
        self._count += 1
        if self._count <= _EAGER_POLLS:
            os.sched_yield()
            return
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_SLEEP_SECONDS)
