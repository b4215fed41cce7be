"""Which rank the others wait for."""

from __future__ import annotations

import dataclasses

import numpy as np

# A rank is named that comes last in at least this part of the samples, ...
LEAST_SHARE = 2 / 3
# ... by at least this part of a step, in the median, and as much time.
LEAST_FRACTION = 0.05
LEAST_SECONDS = 1e-3
LEAST_SAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Straggler:
    """A rank that comes late to where all meet, again and again.

    Attributes:
      rank: The rank.
      late_seconds: How much later than the one before it, in the median of the samples in which it
        was the last.
      samples: Number of steps that were looked at.
    """

    rank: int
    late_seconds: float
    samples: int


def find_straggler(waits: np.ndarray, step_seconds: float) -> Straggler | None:
    """The rank that the others wait for, if it is one and the same most of the time.

    A sum is there on all ranks at almost the same time, so that the rank which arrived last is the
    one that waited least, and by how much less it waited is how much later it came: no clocks are
    compared.

    Args:
      waits: [ranks, samples], seconds from a rank's arrival at a sum over all ranks to the sum.
      step_seconds: A step's.

    >>> punctual, late = [0.030, 0.028, 0.031, 0.030, 0.029], [0.001] * 5
    >>> find_straggler(np.array([punctual, punctual, late]), step_seconds=0.1)
    Straggler(rank=2, late_seconds=0.029, samples=5)
    >>> find_straggler(np.array([punctual, punctual, punctual]), step_seconds=0.1) is None
    True
    """
    ranks, samples = waits.shape
    if ranks < 2 or samples < LEAST_SAMPLES:
        return None
    last = np.argmin(waits, axis=0)
    rank = int(np.bincount(last, minlength=ranks).argmax())
    when = last == rank
    least, second = np.sort(waits[:, when], axis=0)[:2]
    late_seconds = float(np.median(second - least))
    threshold = max(LEAST_SECONDS, LEAST_FRACTION * step_seconds)
    if when.mean() < LEAST_SHARE or late_seconds < threshold:
        return None
    return Straggler(rank, round(late_seconds, 6), samples)
