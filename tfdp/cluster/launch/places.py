"""The places on this host where ranks may run: which there are now, and which are done without.

A place is one rank's share of the GPUs, or a number where there are none. With `-n N` there are N,
once and for all. With `-n MIN:MAX` there are MAX, less those that are known not to be there:

- the command given as `--discover` prints a smaller number;
- the host has fewer GPUs than before;
- the system did not give a process, a port or a file for it (`ulimit`);
- its rank, and not every rank, failed before its strategy was made, in two attempts in a row.

The first two may come back; the last two count for the rest of the run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from tfdp.base import gpus, machine
from tfdp.base.words import ranks_in_words
from tfdp.cluster.launch.attempt import Starter
from tfdp.cluster.launch.discovery import Discovery
from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.run_options import EVERY_SECONDS, JOIN_SECONDS, RunOptions
from tfdp.cluster.launch.verdict import TIMED_OUT, EndedError, stopped_by

Place = int | str
Say = Callable[[str], None]

_LOOK_SECONDS = 0.5  # between two looks for places, while there are too few
_GLANCE_SECONDS = 0.05  # the shortest look for signals


class Places:
    """The places of a run on this host.

    Args:
      options: The options of the run.
      environ: The launcher's environment.
      say: Called with what the user should know, from any thread.
      look: Called again and again while the command to ask is waited for the first time; what it
        raises ends that.

    Raises:
      TooFewGPUsError: There are fewer GPUs than the ranks need.
      DiscoveryError: The command to ask says no number.

    >>> from tfdp.cluster.launch.run_options import Span
    >>> options = RunOptions(processes=Span(1, 3), command=("x.py",), max_restarts=1,
    ...                      discover="echo 2")
    >>> with Places(options, {"CUDA_VISIBLE_DEVICES": "-1"}, print) as places:
    ...     places.now(), places.wants_another_number(3)
    ([None, None], True)
    """

    def __init__(
        self,
        options: RunOptions,
        environ: Mapping[str, str],
        say: Say,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._environ = options, environ
        self._shares: list[str | None] = gpu_shares(options, environ)
        # With fewer GPUs later on, a rank still gets as many.
        first = self._shares[0]
        self._each = None if first is None else first.count(",") + 1
        self._without: set[Place] = set()
        self._taken: list[Place] = []
        self._failed_before: set[Place] = set()
        self._most = options.ranks.most
        self._closing = contextlib.ExitStack()
        self._discovery: Discovery | None = None
        if options.discover is not None:
            every = options.discover_every_seconds or EVERY_SECONDS
            discovery = Discovery(options.discover, every, say, look)
            self._discovery = self._closing.enter_context(discovery)

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def now(self) -> list[str | None]:
        """Returns the `CUDA_VISIBLE_DEVICES` of each rank that may run now, None without GPUs.

        There may be fewer than MIN.
        """
        if self._options.is_elastic and self._each is not None:
            try:
                self._shares = gpu_shares(self._options, self._environ, self._each)
            except TooFewGPUsError:
                self._shares = []
        left = self._left()
        self._taken = list(left)[: self._limit()]
        return [left[place] for place in self._taken]

    def wants_another_number(self, running: int) -> bool:
        """Returns whether the command to ask now says another number than that of ranks that run.

        GPUs are counted between attempts alone.
        """
        if self._discovery is None:
            return False
        return min(len(self._left()), self._limit()) != running

    def can_do_with(self, started: int) -> bool:
        """Returns whether the run goes on where no more than so many ranks could be started."""
        fewer = started < len(self._taken)  # or it would come to the same again
        return self._options.is_elastic and self._options.ranks.least <= started and fewer

    def could_not_start(self, started: int) -> str:
        """Notes after how many ranks the system gave nothing; returns what is said of it."""
        self._most = min(self._most, started)
        return f"The run goes on with at most {self._most} ranks on this host."

    def learn(self, attempt: Attempt) -> str:
        """Notes whose rank has failed at its start, and returns what is said of it."""
        failed = {self._taken[rank - attempt.first_rank]: rank for rank in attempt.failed_at_start}
        again = {
            place: rank
            for place, rank in failed.items()
            if place in self._failed_before and place not in self._without
        }
        self._failed_before = set(failed)
        alone = len(failed) < len(self._taken)  # where every rank fails, fewer would fail as well
        left = len(self._taken) - len(again)
        if not (again and alone and self._options.is_elastic and left >= self._options.ranks.least):
            return ""
        self._without |= set(again)
        gpus = ", ".join(place for place in again if isinstance(place, str))
        return (
            f"{ranks_in_words(sorted(again.values()))} failed at the start in two attempts in a "
            f"row; the run goes on without"
            f"{f' (GPUs: {gpus})' if gpus else ''}, with {left} ranks on this host."
        )

    def _left(self) -> dict[Place, str | None]:
        """Returns the shares of the places that are there and are not done without."""
        shares: dict[Place, str | None] = {
            number if share is None else share: share for number, share in enumerate(self._shares)
        }
        return {place: share for place, share in shares.items() if place not in self._without}

    def _limit(self) -> int:
        most = self._most
        return most if self._discovery is None else min(most, self._discovery.latest)


def wait_for_places(starter: Starter, places: Places, say: Say) -> Sequence[str | None]:
    """Returns the GPUs of each rank that may run now, as soon as there are enough ranks.

    Raises:
      EndedError: There are not enough in time, or a signal came.
    """
    least = starter.options.ranks.least
    seconds = starter.options.join_timeout_seconds or JOIN_SECONDS
    deadline = time.monotonic() + seconds
    waits = False
    while len(found := places.now()) < least:
        if not waits:
            waits = True
            say(
                f"at least {least} ranks must run, and there are places for {len(found)}; waits "
                f"{seconds:g} s at most for others."
            )
        if time.monotonic() >= deadline:
            raise EndedError(
                1,
                f"`-n MIN:MAX` must have places for MIN ranks within `join-timeout`; received -n "
                f"{starter.options.ranks}, and after {seconds:g} s places for {len(found)}; lower "
                "MIN, or start the same command again when there are more.",
            )
        look_up(starter, _LOOK_SECONDS)
    return found


def look_up(starter: Starter, seconds: float = 0.0) -> None:
    """Waits for so many seconds, and ends the run if a signal or its time limit has come.

    Raises:
      EndedError: One of them has come.
    """
    number = starter.received.within(max(seconds, _GLANCE_SECONDS))
    if number is not None:
        raise stopped_by(number)
    if time.monotonic() >= starter.end:
        raise EndedError(TIMED_OUT, "`timeout` ended the run, while no rank ran.")


class TooFewGPUsError(ValueError):
    """An error where there are fewer GPUs than the ranks need."""


def gpu_shares(
    options: RunOptions, environ: Mapping[str, str], each: int | None = None
) -> list[str | None]:
    """Returns each rank's `CUDA_VISIBLE_DEVICES`; None for ranks that keep the launcher's.

    The GPUs that the launcher may use are shared evenly, or by `--gpus-per-process`. Nothing
    changes on hosts without GPUs, for one rank, and where TensorFlow is the build for CPUs and JAX
    has no plugin for GPUs, or `JAX_PLATFORMS` names others. With `-n MIN:MAX` there are as many
    shares as the GPUs give, up to MAX.

    Args:
      options: The options of the run.
      environ: The launcher's environment.
      each: The size of a share, where an earlier attempt has settled it.

    Raises:
      TooFewGPUsError: There are fewer GPUs than the ranks need.
    """
    least, most = options.ranks
    each = options.gpus_per_process or each
    on_cpus = machine.tensorflow_is_for_cpus() and machine.plugin_of_jax(environ) is None
    if each is None and (most == 1 or on_cpus):
        return [None] * most
    found = gpus.visible(environ)
    if each is None and not found:
        return [None] * most
    if len(found) < least * (each or 1):
        raise TooFewGPUsError(_too_few(least, each, len(found), environ.get(gpus.VISIBLE)))
    count = min(most, len(found) // (each or 1))
    return [",".join(gpus.share(found, rank, count, each)) for rank in range(count)]


def _too_few(processes: int, each: int | None, found: int, chosen: str | None) -> str:
    there_are = f"{found} GPU{'s' * (found != 1)}"
    if chosen is not None:
        there_are += f" ({gpus.VISIBLE}={chosen!r})"
    on_cpus = f"train on CPUs: `{gpus.VISIBLE}=-1 tfdp run -n {processes} ...`"
    if each is None:
        return (
            f"`-n` must not exceed the GPUs, of which each rank has its own; received {processes} "
            f"and {there_are}; do `-n {found}`, or {on_cpus}."
        )
    fewer = f"`--gpus-per-process {found // processes}`" if found >= processes else "fewer ranks"
    return (
        f"`gpus-per-process` times `-n` must not exceed the GPUs; received {each} times "
        f"{processes} and {there_are}; do {fewer}, or leave the option out and {on_cpus}."
    )
