"""The contents of a chart: a drawing, the same as a table, and the same in a sentence."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

import markupsafe
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tfdp.base.words import number

MOST_POINTS = 200  # of a line
_LARGEST = 1e100

Points = Sequence[tuple[float, float]]
Words = Callable[[float | None], str]

NUMBERS = FuncFormatter(lambda value, _: number(value))


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart for the template.

    Args:
      title: The title.
      description: The drawing in a sentence, with numbers, for those who do not see it.
      unit: The numbers' unit, and whether their axis is logarithmic.
      svg: The drawing.
      legend: Each colour as (CSS classes, name).
      head: The columns of the table below the drawing.
      rows: The cells of the table.
      note: What the reader must know of the chart.
    """

    title: str
    description: str
    unit: str
    svg: markupsafe.Markup
    legend: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


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


def drawable(value: float) -> float:
    """Returns the number to draw: at most 1e100 from 0, so that differences stay finite.

    >>> drawable(-1e300), drawable(2.0)
    (-1e+100, 2.0)
    """
    return max(-_LARGEST, min(_LARGEST, value))


def by_round_numbers(
    axis: XAxis | YAxis, ends: tuple[float, float], most: int, whole: bool = False
) -> None:
    """Gives an axis at most `most` steps between round numbers, and lets it end at round numbers.

    Args:
      axis: An axis of matplotlib.
      ends: The least and the largest value that must be on the axis.
      most: The most steps; where `ends` are no round numbers, there may be one more.
      whole: Whether only whole numbers are shown.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().add_subplot()
    >>> by_round_numbers(axes.yaxis, (3.0, 57.0), most=6)
    >>> [float(end) for end in axes.get_ylim()], len(axes.get_yticks())
    ([0.0, 60.0], 7)
    """
    low, high = ends
    if low == high:
        room = abs(low) / 2 or 1.0
        low, high = low - room if low else low, high + room
    ticks = MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high)
    axis.set_ticks(ticks)
    axis.set_major_formatter(NUMBERS)
    axis.axes.set(**{f"{axis.axis_name}lim": (ticks[0], ticks[-1])})
