"""The geometry of charts: axes with their numbers, and long lines as few points."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

MOST_POINTS = 200  # of a line

_LARGEST, _SMALLEST = 1e100, 1e-100

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from its low end to its high end, with the numbers that it shows."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Returns where a value lies: 0 at the low end, 1 at the high end.

        >>> Axis(1.0, 100.0, (), logarithmic=True).share(10.0)
        0.5
        """
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def within(self, low: float, high: float) -> Axis:
        """Returns the axis between two values, with the numbers between them.

        >>> Axis(0.0, 60.0, (0.0, 20.0, 40.0, 60.0)).within(7.0, 50.0).ticks
        (20.0, 40.0)
        """
        if low == high:
            low, high = low - 0.5, high + 0.5
        return Axis(low, high, tuple(tick for tick in self.ticks if low <= tick <= high))


def drawable(value: float) -> float:
    """Returns the number to draw: at most 1e100 from 0, so that differences stay finite.

    >>> drawable(-1e300), drawable(2.0), drawable(1e-300)
    (-1e+100, 2.0, 0.0)
    """
    return max(-_LARGEST, min(_LARGEST, value)) if abs(value) > _SMALLEST else 0.0


def round_axis(low: float, high: float, most: int, whole: bool = False) -> Axis:
    """Returns an axis of at most `most` steps between round numbers, which ends at round numbers.

    Args:
      low, high: The least and the largest value that must be on the axis.
      most: The most steps.
      whole: Whether only whole numbers are shown.

    >>> round_axis(3.0, 57.0, most=6).ticks
    (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    """
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(low) / 2 or 1.0
        low, high = low - room if low else low, high + room
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20, 50):
        step = max(1.0, factor * power) if whole else factor * power
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first <= most:
            break
    ticks = tuple(step * index for index in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def logarithmic_axis(low: float, high: float, ticks: Sequence[float] = ()) -> Axis:
    """Returns an axis by the logarithms of values above 0.

    Args:
      low, high: Its ends.
      ticks: The numbers that it shows; by default at most seven of few digits.

    >>> logarithmic_axis(0.03, 40.0).ticks
    (0.1, 1.0, 10.0)
    """
    if low == high:
        return Axis(low / 2, 2 * high, tuple(ticks) or (low,), logarithmic=True)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        found = [float(f * 10.0**power) for power in powers for f in factors]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            break
    else:
        found = [low, high]
    kept = ticks or found[:: -(-len(found) // 7)]
    return Axis(low, high, tuple(kept), logarithmic=True)


@dataclasses.dataclass(frozen=True)
class Bin:
    """Neighbouring points, joined to one.

    Args:
      x: The middle of their places.
      median: The median of their values.
      least: The least value.
      largest: The largest value.
      of: The number of points.
    """

    x: float
    median: float
    least: float
    largest: float
    of: int = 1


def thinned(
    points: Points, most: int = MOST_POINTS, band: Sequence[tuple[float, float]] | None = None
) -> list[Bin]:
    """Returns at most `most` bins of equal numbers of points, without points that are not finite.

    Args:
      points: (x, y) by growing x.
      most: The number of bins.
      band: (least, largest) of each point, if these are not the point itself.

    >>> thinned([(1, 5.0), (2, 7.0), (3, 1.0), (4, 1.0)], most=2)
    [Bin(x=1.5, median=6.0, least=5.0, largest=7.0, of=2), Bin(x=3.5, ..., of=2)]
    """
    ends = band or [(y, y) for _, y in points]
    kept = [
        (x, y, *(end if math.isfinite(end) else y for end in pair))
        for (x, y), pair in zip(points, ends, strict=True)
        if math.isfinite(y)
    ]
    each = max(1, math.ceil(len(kept) / most))
    bins = []
    for begin in range(0, len(kept), each):
        xs, ys, least, largest = zip(*kept[begin : begin + each], strict=True)
        middle = (xs[0] + xs[-1]) / 2
        bins.append(Bin(middle, statistics.median(ys), min(least), max(largest), len(xs)))
    return bins
