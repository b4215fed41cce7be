"""What a chart is made of: geometry and words, for the template.

The template draws it as inline SVG, stretched to the width that there is, with labels beside it
that are not stretched. Nothing here knows HTML.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from tfdp.report.axes import SPAN, Axis, Tick
from tfdp.report.words import number

MOST_TIPS = 100
_MOST_ROWS = 24

Words = Callable[[float | None], str]
Cells = Callable[[float], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A line, an area or the dots of a series: a path of SVG, in units of 1/1000."""

    style: str
    path: str


@dataclasses.dataclass(frozen=True)
class Tip:
    """A strip of the chart that shows a text while the pointer is there."""

    left: float
    width: float
    text: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart for the template.

    Args:
        title: what it shows.
        description: the same in a sentence, with numbers, for those who do not see it.
        x_label: the horizontal axis'.
        y_label: the unit of the other.
        x_ticks: with places from the left.
        y_ticks: with places from above.
        areas: drawn first.
        lines: drawn over them.
        dots: drawn over these.
        marks: places of vertical lines, from the left, of 1000: restarts.
        tips: what the pointer shows.
        legend: (style, name).
        head: the columns of the table below.
        rows: its cells.
        note: what the reader must know of it.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    areas: tuple[Shape, ...]
    lines: tuple[Shape, ...]
    dots: tuple[Shape, ...]
    marks: tuple[float, ...]
    tips: tuple[Tip, ...]
    legend: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points, for SVG.

    Example:
        >>> path([(0, 1000), (12.5, 0)])
        'M0,1000 L12.5,0'
    """
    return "M" + " L".join(f"{x:g},{y:g}" for x, y in points)


def from_above(axis: Axis) -> tuple[Tick, ...]:
    """A vertical axis' ticks, whose places count from above.

    Example:
        >>> [tick.percent for tick in from_above(Axis(0, 2))][:2]
        [100.0, 75.0]
    """
    return tuple(Tick(100 - tick.percent, tick.label) for tick in axis.ticks())


def tips(
    places: Sequence[float], x: Axis, x_label: str, names: Sequence[str], cells: Cells
) -> tuple[Tip, ...]:
    """Strips side by side, each as far as the middle between neighbours.

    Args:
        places: where there are values.
        x: the horizontal axis.
        x_label: its name.
        names: of the values.
        cells: the values at a place, in words.

    Example:
        >>> found = tips([1, 3], Axis(1, 3), "step", ["a"], lambda place: ("7",))
        >>> [(tip.left, tip.width) for tip in found]
        [(0.0, 500.0), (500.0, 500.0)]
    """

    def text(place: float) -> str:
        values = [f"{name} {cell}" for name, cell in zip(names, cells(place), strict=True)]
        return "\n".join([f"{x_label} {number(place)}", *values])

    shown = _some(places, MOST_TIPS)
    ends = [x.place((a + b) / 2) for a, b in itertools.pairwise(shown)]
    return tuple(
        Tip(left, round(right - left, 1), text(place))
        for place, left, right in zip(shown, [0.0, *ends], [*ends, float(SPAN)], strict=True)
    )


def rows(places: Sequence[float], cells: Cells) -> tuple[tuple[str, ...], ...]:
    """The table of a chart: some of its places, evenly, with the first and the last.

    Example:
        >>> rows([1, 2], lambda x: (str(10 * x),))
        (('1', '10'), ('2', '20'))
    """
    return tuple((number(place), *cells(place)) for place in _some(places, _MOST_ROWS))


def _some(places: Sequence[float], most: int) -> list[float]:
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]
