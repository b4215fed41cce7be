"""The rule for which ranks the others wait for, used by the log of a training and by its report.

Ranks wait for each other at the first bucket, and before it where the loss needs numbers of all
ranks. All leave a sum together, so the rank that waits least arrived last, and it came later by as
much as it waits less. The differences need no clock that the hosts share.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

# A rank straggles if it is late by this fraction of a step, by this many seconds, and in at least
# this many samples; it must also be last often enough, see `last_share`.
LATE_SHARE = 0.05
LATE_SECONDS = 1e-3
LEAST_SAMPLES = 5
# A late rank is beyond this many median absolute deviations over the root of the number of samples.
# Normal noise of a fifth of a step on 2 to 8 ranks then names a rank in 1 to 5 % of runs with 5
# samples, in at most 2 % with 10, and in none of 500 with 40. Without this condition it names one
# in 36 to 97 %, 36 to 88 % and 4 to 37 % of them.
BEYOND_NOISE = 8.0


@dataclasses.dataclass(frozen=True)
class Arrival:
    """The lateness of a rank at the point where all ranks meet.

    Args:
      rank: The rank.
      late_seconds: How much longer the median of the other ranks waited, as the median over
        samples; above 0 for a rank that comes late.
      times_last: The number of samples in which no rank waited less; a tie counts for the first.
      samples: The number of sampled steps.
      straggles: Whether the others wait for the rank, see :func:`arrivals`.
    """

    rank: int
    late_seconds: float
    times_last: int
    samples: int
    straggles: bool


def stragglers(waits: Sequence[Sequence[float]], step_seconds: float) -> tuple[Arrival, ...]:
    """Returns the ranks that the others wait for, by the rule of :func:`arrivals`.

    The arguments are those of :func:`arrivals`.

    Returns:
      The ranks that straggle, first the one that came last most often, of equals the later one; ()
      if there are none.

    >>> punctual, late = [0.050, 0.048, 0.051, 0.050, 0.049], [0.001, 0.004, 0.002, 0.0, 0.003]
    >>> [one.rank for one in stragglers([punctual] * 6 + [late, late[::-1]], step_seconds=0.1)]
    [6, 7]
    >>> stragglers([punctual] * 8, step_seconds=0.1)
    ()
    """
    late = [one for one in arrivals(waits, step_seconds) if one.straggles]
    return tuple(sorted(late, key=lambda one: (-one.times_last, -one.late_seconds)))


def arrivals(waits: Sequence[Sequence[float]], step_seconds: float) -> tuple[Arrival, ...]:
    """Returns how late each rank comes, and whether it straggles.

    A rank is late if it waits less than the median of the others, in the median over samples, by
    `LATE_SHARE` of a step, by `LATE_SECONDS`, and by more than noise makes of so few samples
    (`BEYOND_NOISE`). A late rank straggles if no punctual rank arrived after it in
    :func:`last_share` of at least `LEAST_SAMPLES` samples. Several ranks may straggle: two slow
    ranks of a host need not come last as often as one alone, whether they take turns or one is
    always before the other. More than half of the ranks hardly can, since the median is then
    theirs.

    Cost: a sort of the ranks in each sample, in pure Python; 0.1 s for 1,000 ranks and 50 samples.

    Args:
      waits: The waits of each rank, in seconds from its arrival to the sum, one for each sample,
        the same samples for all.
      step_seconds: How long a step takes.

    Returns:
      An arrival for each rank; () with fewer than two ranks, or without samples.

    Raises:
      ValueError: The ranks have different numbers of samples.

    >>> arrivals([[0.5] * 5, [0.25] * 5], step_seconds=2.0)[1]
    Arrival(rank=1, late_seconds=0.25, times_last=5, samples=5, straggles=True)
    """
    lengths = {len(row) for row in waits}
    if len(lengths) > 1:
        raise ValueError(
            f"`waits` must have the same samples of all ranks, but received between {min(lengths)} "
            f"and {max(lengths)} of a rank. Use waits=[row[:{min(lengths)}] for row in waits]."
        )
    ranks, samples = len(waits), max(lengths, default=0)
    if ranks < 2 or not samples:
        return ()
    by_sample = list(zip(*waits, strict=True))
    last = [row.index(min(row)) for row in by_sample]
    lateness = list(zip(*map(_lateness, by_sample), strict=True))
    medians = [statistics.median(row) for row in lateness]
    least = max(LATE_SECONDS, LATE_SHARE * step_seconds, BEYOND_NOISE * _noise(lateness, medians))
    late = [median >= least for median in medians]
    often = last_share(ranks) * samples
    after_punctual = _times_after_punctual(by_sample, late)
    return tuple(
        Arrival(
            rank=rank,
            late_seconds=medians[rank],
            times_last=last.count(rank),
            samples=samples,
            straggles=samples >= LEAST_SAMPLES and late[rank] and after_punctual[rank] >= often,
        )
        for rank in range(ranks)
    )


def last_share(ranks: int) -> float:
    """Returns the share of samples in which a straggler is last: half as often again as by chance.

    The share is two thirds at most, which one of two ranks must reach.

    >>> last_share(2), last_share(6)
    (0.6666666666666666, 0.25)
    """
    return min(2 / 3, 1.5 / ranks)


def _lateness(waits: Sequence[float]) -> list[float]:
    """Returns how much longer the median of the others waits than each rank, in one sample."""
    order = sorted(range(len(waits)), key=waits.__getitem__)
    below, above = (len(waits) - 2) // 2, (len(waits) - 1) // 2  # the middle of the others
    late = [0.0] * len(waits)
    for place, rank in enumerate(order):
        low = waits[order[below + (below >= place)]]
        high = waits[order[above + (above >= place)]]
        late[rank] = (low + high) / 2 - waits[rank]
    return late


def _noise(lateness: Sequence[Sequence[float]], medians: Sequence[float]) -> float:
    """Returns how far noise moves the median from 0, by the scale of all ranks' deviations."""
    deviations = [
        abs(value - median) for row, median in zip(lateness, medians, strict=True) for value in row
    ]
    return statistics.median(deviations) / math.sqrt(len(lateness[0]))


def _times_after_punctual(by_sample: Sequence[Sequence[float]], late: Sequence[bool]) -> list[int]:
    """Counts the samples in which a late rank came after all punctual ones; 0 if all are late."""
    times = [0] * len(late)
    if all(late):
        return times
    for waits in by_sample:
        least = min(wait for wait, is_late in zip(waits, late, strict=True) if not is_late)
        for rank, wait in enumerate(waits):
            times[rank] += wait < least
    return times
