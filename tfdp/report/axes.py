"""Where numbers stand in a chart: ticks, positions, and many points made few."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from tfdp.report.words import number

# A chart's own unit: its drawing is stretched to whatever width and height the page gives it.
SPAN = 1000

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Tick:
    """A label of an axis: its place in percent, from the left or from above, and its text."""

    percent: float
    label: str


@dataclasses.dataclass(frozen=True)
class Axis:
    """A range of numbers, linear or by powers of ten.

    Example:
        >>> axis = Axis(0, 50)
        >>> axis.place(10), [(tick.percent, tick.label) for tick in axis.ticks(3)]
        (200.0, [(0.0, '0'), (40.0, '20'), (80.0, '40')])
    """

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """A number's place, from 0 to :data:`SPAN`; beyond the range it is at its end."""
        low, high, value = (self._scaled(x) for x in (self.low, self.high, value))
        if high <= low:
            return SPAN / 2
        return round(SPAN * min(1.0, max(0.0, (value - low) / (high - low))), 1)

    def ticks(self, most: int = 5, whole: bool = False) -> tuple[Tick, ...]:
        """At most `most` labels, or one more, at round numbers in the range.

        Args:
            most: how many.
            whole: whether only whole numbers have a label, as of epochs.
        """
        values = self._powers(most) if self.logarithmic else self._multiples(most, whole)
        return tuple(Tick(self.place(value) / SPAN * 100, number(value)) for value in values)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.logarithmic else value

    def _multiples(self, most: int, whole: bool) -> list[float]:
        step = nice_step((self.high - self.low) / max(1, most))
        if whole:
            step = max(1.0, math.ceil(step))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{index * step:.12g}") for index in range(first, last + 1)]

    def _powers(self, most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.floor(math.log10(self.high))
        factors = (1, 2, 5) if last - first < 3 else (1,)
        every = max(1, math.ceil((last - first) / most))
        values = [
            float(f"{factor}e{power}")
            for power in range(first, last + 1, every)
            for factor in factors
        ]
        return [value for value in values if self.low <= value <= self.high * (1 + 1e-9)]


def nice_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not less.

    Example:
        >>> nice_step(0.3), nice_step(7), nice_step(0)
        (0.5, 10.0, 1.0)
    """
    if not rough > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def axis_for(values: Sequence[float], zero: bool = False, may_be_logarithmic: bool = False) -> Axis:
    """An axis that shows all of the finite values, with some room.

    Args:
        values: what is to be shown.
        zero: whether 0 is on the axis, as for times and rates.
        may_be_logarithmic: whether it goes by powers of ten if all are above 0 and the largest
            is more than 50 times the smallest.

    Example:
        >>> axis_for([1.0, 2.0, 3.0], zero=True)
        Axis(low=0.0, high=3.0, logarithmic=False)
        >>> axis_for([1.0, 1000.0], may_be_logarithmic=True).logarithmic
        True
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if may_be_logarithmic and low > 0 and high > 50 * low:
        return Axis(low, high, logarithmic=True)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    if low == high:
        room = abs(low) / 2 or 1.0
        return Axis(low - room if not zero else low, high + room)
    step = nice_step((high - low) / 5)
    return Axis(step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9))


@dataclasses.dataclass(frozen=True)
class Bin:
    """Neighbouring points as one: the middle of their places, their median, least and largest.

    `of` says how many there are.
    """

    x: float
    median: float
    least: float
    largest: float
    of: int = 1


def thinned(points: Points, most: int = 200) -> list[Bin]:
    """At most `most` bins of equal numbers of points; what is not finite is left out.

    Example:
        >>> thinned([(1, 5.0), (2, 7.0), (3, 1.0), (4, 1.0)], most=2)
        [Bin(x=1.5, median=6.0, least=5.0, largest=7.0, of=2), Bin(x=3.5, ..., of=2)]
    """
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    each = max(1, math.ceil(len(finite) / most))
    bins = []
    for begin in range(0, len(finite), each):
        part = finite[begin : begin + each]
        values = [y for _, y in part]
        middle = (part[0][0] + part[-1][0]) / 2
        median = statistics.median(values)
        bins.append(Bin(middle, median, min(values), max(values), len(part)))
    return bins
