"""The watchdog thread: it gives signs of life, checks the others', and keeps the deadline.

It notices a rank that is silent. A rank whose connection breaks is noticed in `control_channel`.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from tfdp.base import rank_comparison
from tfdp.base.words import ranks_in_words
from tfdp.cluster.control_channel import ControlChannel
from tfdp.errors import CollectiveTimeoutError

# What is waited for by a process that has traced a function, until all have; its name follows.
TRACE_OF = "the trace of "

# The number of periods that a state must last before it is judged, as signs may be out of date.
_PERIODS = 3


@dataclasses.dataclass(frozen=True)
class Progress:
    """The place of a process in its sequence of collectives.

    Attributes:
      steps: The number of replica functions begun.
      begun: The number of collectives begun, over all groups and local replicas.
      done: The number of collectives done.
      operation: The collective begun last.
      error: The error with which this process, and not the others, ended a step and goes on.
      settings: By name what each rank decides for itself and all must decide alike; JSON.
    """

    steps: int = 0
    begun: int = 0
    done: int = 0
    operation: str = ""
    error: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        if self.begun > self.done:
            return f"in step {self.steps}, inside {self.operation}"
        after = f", after {self.error}" if self.error else ""
        chosen = "".join(f", with {name} {value}" for name, value in self.settings.items() if value)
        return f"in step {self.steps}, outside any collective{after}{chosen}"


def _where(sign: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Returns the step and what is waited for; collectives begun at once may end in any order."""
    inside = sign["begun"] > sign["done"]
    return sign["steps"], ("a collective",) if inside else tuple(sign["waits"])


class Watchdog:
    """The thread that calls `board.fail` or `board.lose` where further waiting would be vain.

    - A rank that gives no sign of life for `silence_seconds` is lost: stopped, or unreachable, or
      in a C function that lets no other Python thread run for so long. Rank 0 watches all ranks;
      the others watch rank 0.
    - A rank that went on after a step ended with an error is lost to a process that waits for it
      meanwhile, since the rank will not come to the collective that the others wait in.
    - Where every rank waits, but not all in the same place, they wait for each other for ever. If
      settings differ between the ranks, these are named; so is a function that some have traced
      once more, by values that are new to them, and others have called as it was.
    - A collective of this process that is not done after its deadline fails, and the ranks that did
      not take part are named.

    Args:
      board: The board that the signs are sent by.
      progress: Called once a period, from the watchdog's thread.
      silence_seconds: The longest time between two signs of a rank that is not lost.
      period_seconds: The time between two signs of this process.
      deadline_seconds: How long a collective may take; None: the board's `timeout_seconds`.
    """

    def __init__(
        self,
        board: ControlChannel,
        progress: Callable[[], Progress],
        silence_seconds: float = 60.0,
        period_seconds: float = 1.0,
        deadline_seconds: float | None = None,
    ) -> None:
        self._board = board
        self._progress = progress
        self._silence_seconds = silence_seconds
        self._period_seconds = period_seconds
        self._deadline_seconds = deadline_seconds
        self._stop = threading.Event()
        self._last = Progress()
        self._last_change = self._last_round = self._started = time.monotonic()
        self._left_alone: tuple[int, int, int] | None = None  # steps, collectives done, periods
        self._standing: tuple[Any, int] = (None, 0)  # where all ranks are, for how many periods
        self._thread = threading.Thread(target=self._run, name="tfdp-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after a last sign."""
        self._stop.set()
        self._thread.join(10.0)
        with contextlib.suppress(Exception):  # of a TensorFlow at its end
            self._sign()  # the others hear where this rank was

    def _sign(self) -> Progress:
        progress, waits = self._progress(), list(self._board.waits_for)
        text = ", ".join([str(progress), *(f"waiting for {what}" for what in waits)])
        self._own = dataclasses.asdict(progress) | {"text": text, "waits": waits}
        self._board.sign(self._own)
        return progress

    def _run(self) -> None:
        while not self._stop.wait(self._period_seconds):
            if self._board.failure is not None:
                return
            progress = self._sign()
            now = time.monotonic()
            if now - self._last_round > self._silence_seconds / 2:
                # This process itself was stopped for a while: the others' signs lie unread.
                self._started = self._last_change = now
            self._last_round = now
            self._check_silence(now)
            self._check_errors(progress)
            self._check_places()
            self._check_deadline(now, progress)

    def _check_silence(self, now: float) -> None:
        watched = range(1, self._board.world_size) if self._board.rank == 0 else [0]
        signs, ended = self._board.signs(), self._board.ended()
        for rank in watched:
            silent = min(signs.get(rank, (now - self._started, None))[0], now - self._started)
            if silent > self._silence_seconds and rank not in ended:
                self._board.lose(
                    rank,
                    f"it gave no sign of life for {silent:.0f} s (it is stopped, or its host "
                    "cannot be reached)",
                )
                return

    def _check_errors(self, progress: Progress) -> None:
        """Gives up a rank that went on after an error of its own, if this process waits for it."""
        ended, signs = self._board.ended(), self._board.signs()
        went_on = [
            rank for rank, (_, sign) in signs.items() if sign.get("error") and rank not in ended
        ]
        waits = progress.begun > progress.done or self._board.waits_for
        if progress.error or not went_on or not waits:
            self._left_alone = None
            return
        steps, done, periods = self._left_alone or (progress.steps, progress.done, 0)
        if (steps, done) != (progress.steps, progress.done):
            periods = 0
        self._left_alone = (progress.steps, progress.done, periods + 1)
        if periods < _PERIODS - 1:
            return
        rank = went_on[0]
        where = progress.operation if progress.begun > progress.done else self._board.waits_for[0]
        self._board.lose(
            rank,
            f"it left step {signs[rank][1]['steps']} with {signs[rank][1]['error']}, alone, and "
            f"the others wait for it in {where}. Let an error end every rank, or decide on all of "
            "them together to go on",
        )

    def _check_places(self) -> None:
        """Names what differs where the ranks wait for each other."""
        given = self._board.signs() | {self._board.rank: (0.0, self._own)}
        fresh = all(age < _PERIODS * self._period_seconds for age, _ in given.values())
        signs = {rank: sign for rank, (_, sign) in sorted(given.items())}
        places = {rank: _where(sign) for rank, sign in signs.items()}
        standing = places, [sign["done"] for sign in signs.values()]
        before, periods = self._standing
        self._standing = standing, periods + 1 if standing == before else 0
        each_waits = len(signs) == self._board.world_size and all(w for _, w in places.values())
        # A collective that all have begun is under way, however long it takes one of them.
        begun = {sign["begun"] for sign in signs.values()}
        under_way = len(begun) == 1 and any(sign["begun"] > sign["done"] for sign in signs.values())
        stands = fresh and each_waits and not under_way and self._standing[1] >= _PERIODS
        if not stands or len(set(places.values())) == 1:
            return
        texts = " ".join(f"Rank {rank} is {sign['text']}." for rank, sign in signs.items())
        self._check_settings(signs, texts)
        self._check_traces(places, texts)

    def _check_settings(self, signs: dict[int, dict[str, Any]], texts: str) -> None:
        for name in self._own["settings"]:
            values = [sign["settings"][name] for sign in signs.values()]
            if len({*values}) > 1:
                self._board.fail(
                    rank_comparison.mismatch(
                        f"Rank {self._board.rank}: ",
                        f"{name} must be alike on all ranks",
                        f"it is {rank_comparison.by_ranks(values)}, and they wait for each other",
                        f"{texts} Let all ranks set it in the same place, by what is the same on "
                        "all, as logs are.",
                    )
                )
                return

    def _check_traces(self, places: dict[int, tuple[int, tuple[str, ...]]], texts: str) -> None:
        latest = max(steps for steps, _ in places.values())
        called = [rank for rank, (steps, _) in places.items() if steps == latest]
        for rank, (steps, waits) in places.items():
            traced = [what for what in waits if what.startswith(TRACE_OF)]
            if traced and steps < latest:
                self._board.fail(
                    rank_comparison.mismatch(
                        f"Rank {self._board.rank}: ",
                        "every rank must call a function with the same values of Python, and "
                        "tensors of the same shapes and dtypes",
                        f"{traced[0].removeprefix(TRACE_OF)!r} was traced once more on rank "
                        f"{rank}, for values that are new to it, and {ranks_in_words(called)} went "
                        "on without",
                        f"{texts} Compute them from what is the same on all ranks.",
                    )
                )
                return

    def _check_deadline(self, now: float, progress: Progress) -> None:
        if progress.begun == progress.done or progress.done != self._last.done:
            self._last, self._last_change = progress, now
            return
        waited = now - self._last_change
        ended = self._board.ended()
        allowed = self._deadline_seconds or self._board.timeout_seconds
        if waited < (2 * self._period_seconds if ended else allowed):
            return
        others = [rank for rank in range(self._board.world_size) if rank != self._board.rank]
        signs = self._board.signs()
        behind = [
            rank
            for rank in others
            if rank not in signs
            or rank in ended
            or (signs[rank][1]["steps"], signs[rank][1]["begun"]) < (progress.steps, progress.begun)
        ]
        gone = [rank for rank in behind if rank in ended]
        if gone:
            what = f"{progress.operation} of step {progress.steps}"
            self._board.lose(gone[0], self._board.end_of(gone[0], what))
            return
        missing = f"{ranks_in_words(behind)} did not take part" if behind else "it did not end"
        self._board.fail(
            CollectiveTimeoutError(
                f"Rank {self._board.rank}: {progress.operation} of step {progress.steps} must "
                f"have every rank within {allowed:g} s, but {missing} in "
                f"{waited:.0f} s. {self._board.describe(behind or others)} Let all ranks do the "
                "same steps; `timeout_seconds` allows a slower one more time."
            )
        )
