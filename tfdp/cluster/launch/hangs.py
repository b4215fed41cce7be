"""Hangs of ranks that no other rank notices: the launcher sees that nothing goes on."""

import time
from collections.abc import Callable, Sequence

from tfdp.cluster.rank_status import last_sign, points_reached

# As long as ranks wait for a sign of life of each other.
_SILENT_SECONDS = 60.0

# A launcher that has not looked for so long was stopped, and its ranks may have been so with it.
_LOOKED_AWAY_SECONDS = 10.0


class Hangs:
    """What shows that ranks hang. It is to be asked about once a second.

    - A rank that is alone tells once a second that it lives, from its strategy on. It is lost
      where it is silent for a minute: stopped, or in a C function that lets no other Python thread
      run for so long. A long step, a long compilation and a long evaluation are not silent.
    - With a limit for steps any rank is lost whose training reaches no other step, nor batch of an
      evaluation, for that long.

    Args:
      folder: The folder where ranks leave marks.
      ranks: The ranks of this host.
      world_size: The number of ranks.
      step_timeout_seconds: The limit for steps; None: they take what time they take.
      clock: Returns the time in seconds.
    """

    def __init__(
        self,
        folder: str,
        ranks: Sequence[int],
        world_size: int,
        step_timeout_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._ranks, self._world_size = folder, ranks, world_size
        self._step_timeout = step_timeout_seconds
        self._clock = clock
        self._asked_at = clock()
        self._seen: dict[tuple[str, int], tuple[object, float]] = {}

    def found(self) -> str:
        """Returns which rank hangs, and why that is known; nothing while none does."""
        now = self._clock()
        if now - self._asked_at > _LOOKED_AWAY_SECONDS:
            self._seen.clear()
        self._asked_at = now
        for rank in self._ranks:
            alone = self._world_size == 1
            sign = last_sign(self._folder, rank) if alone else None
            if self._unchanged("sign", rank, sign, now) > _SILENT_SECONDS:
                return (
                    f"rank {rank} of {self._world_size} gave no sign of life for "
                    f"{_SILENT_SECONDS:g} s, and was ended: it is stopped, or a C function lets no "
                    "other Python thread run"
                )
            points = points_reached(self._folder, rank) if self._step_timeout else 0
            waited = self._unchanged("points", rank, points or None, now)
            if self._step_timeout and waited > self._step_timeout:
                return (
                    f"rank {rank} of {self._world_size} reached no step for "
                    f"{self._step_timeout:g} s (`step-timeout`), and was ended. If a step, an "
                    "evaluation or a compilation may take so long, allow more"
                )
        return ""

    def _unchanged(self, what: str, rank: int, value: object, now: float) -> float:
        """Returns for how many seconds a value has been the same; 0 where there is none."""
        before, since = self._seen.get((what, rank), (None, now))
        if value is None or value != before:
            since = now
        self._seen[what, rank] = value, since
        return now - since
