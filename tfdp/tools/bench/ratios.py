"""The medians, ranges and ratios of the times of two sides."""

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """The middle and the ends of some values, in the values' unit."""

    median: float
    minimum: float
    maximum: float


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The comparison of two sides; below 1, the first is faster.

    Args:
      of_medians: The median of the first divided by the median of the second.
      median_of_pairs: The median over the rounds of first / second. Both sides of a round ran one
        after the other, so that a slow phase of the machine cancels.
      pairs: The number of rounds in which both sides delivered.
    """

    of_medians: float
    median_of_pairs: float
    pairs: int


def spread(values: Sequence[float]) -> Spread:
    """Summarises at least one value.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, minimum=1.0, maximum=3.0)
    """
    return Spread(statistics.median(values), min(values), max(values))


def ratio(first: Sequence[float | None], second: Sequence[float | None]) -> Ratio | None:
    """Compares two sides, one value a round; None marks a round in which the side failed.

    Returns:
      The comparison over the rounds in which both sides delivered, or None without such a round.

    >>> ratio([1.0, 3.0, None], [2.0, 2.0, 2.0])
    Ratio(of_medians=1.0, median_of_pairs=1.0, pairs=2)
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    firsts, seconds = zip(*pairs, strict=True)
    return Ratio(
        statistics.median(firsts) / statistics.median(seconds),
        statistics.median(a / b for a, b in pairs),
        len(pairs),
    )
