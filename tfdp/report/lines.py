"""Lines over steps or epochs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from tfdp.report.axes import SPAN, Axis, Bin, Points, axis_for, thinned
from tfdp.report.drawing import Chart, Shape, Words, from_above, path, rows, tips
from tfdp.report.words import count, number

# Up to so many points each has a dot.
_MOST_DOTS = 30


@dataclasses.dataclass(frozen=True)
class Series:
    """What one line is drawn from.

    Args:
        name: for the legend.
        points: (x, y) by growing x.
        style: the name of a CSS class, which gives the colour and dashes.
        band: (least, largest) for each point, shown behind the line; None for those of the points
            that are drawn as one.
    """

    name: str
    points: Points
    style: str
    band: Sequence[tuple[float, float]] | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str = "",
    words: Words = number,
    zero: bool = False,
    may_be_logarithmic: bool = False,
    marks: Iterable[float] = (),
    note: str = "",
) -> Chart | None:
    """Lines over steps or epochs; None if there is not one finite point.

    Long lines are drawn as medians of neighbours, with a band from the least to the largest.

    Args:
        title: what it shows.
        series: the lines.
        x_label: "step" or "epoch".
        y_label: the unit.
        words: how a value is written.
        zero: see :func:`tfdp.report.axes.axis_for`.
        may_be_logarithmic: likewise.
        marks: where vertical lines are, such as restarts.
        note: what the reader must know of it.

    Example:
        >>> chart = line_chart("Loss", [Series("loss", [(1, 2.0), (3, 1.0)], "s0")], x_label="step")
        >>> chart.lines[0].path, chart.rows
        ('M0,0 L1000,1000', (('1', '2'), ('3', '1')))
    """
    drawn = [(one, _bins(one)) for one in series]
    drawn = [(one, bins) for one, bins in drawn if bins]
    if not drawn:
        return None
    every = [bin_ for _, bins in drawn for bin_ in bins]
    x = Axis(min(bin_.x for bin_ in every), max(bin_.x for bin_ in every))
    values = [value for bin_ in every for value in (bin_.least, bin_.largest)]
    y = axis_for(values, zero, may_be_logarithmic)
    places = sorted({bin_.x for bin_ in every})
    by_name = {one.name: {bin_.x: bin_ for bin_ in bins} for one, bins in drawn}
    names = tuple(by_name)

    def cells(place: float) -> tuple[str, ...]:
        found = [by_name[name].get(place) for name in names]
        return tuple("–" if bin_ is None else words(bin_.median) for bin_ in found)

    first = drawn[0][1]
    missing = sum(not math.isfinite(value) for one, _ in drawn for _, value in one.points)
    if missing:
        note = f"{note} {count(missing, 'value')} not finite and not drawn.".strip()
    return Chart(
        title=title,
        description=_description(title, x_label, drawn, words),
        x_label=x_label,
        y_label=", ".join(filter(None, [y_label, "logarithmic" if y.logarithmic else ""])),
        x_ticks=x.ticks(6, whole=True),
        y_ticks=from_above(y),
        areas=tuple(
            Shape(one.style, band) for one, bins in drawn if (band := _band(bins, x, y)) is not None
        ),
        lines=tuple(
            Shape(one.style, path([(x.place(b.x), SPAN - y.place(b.median)) for b in bins]))
            for one, bins in drawn
            if len(bins) > 1
        ),
        dots=tuple(
            Shape(one.style, _dots([(x.place(b.x), SPAN - y.place(b.median)) for b in bins]))
            for one, bins in drawn
            if len(first) <= _MOST_DOTS
        ),
        marks=tuple(x.place(mark) for mark in marks if x.low < mark <= x.high),
        tips=tips(places, x, x_label, names, cells),
        legend=tuple((one.style, one.name) for one, _ in drawn),
        head=(x_label, *names),
        rows=rows(places, cells),
        note=note,
    )


def _description(
    title: str, x_label: str, drawn: Sequence[tuple[Series, list[Bin]]], words: Words
) -> str:
    lines = [
        f"{one.name} from {words(bins[0].median)} to {words(bins[-1].median)}"
        for one, bins in drawn
    ]
    points = count(len(drawn[0][0].points), "point")
    return f"{title.removesuffix(f' by {x_label}')} by {x_label}: {points}, {'; '.join(lines)}."


def _bins(one: Series) -> list[Bin]:
    if one.band is None:
        return thinned(one.points)
    middle = thinned(one.points)
    ends = [
        thinned([(x, end[i]) for (x, _), end in zip(one.points, one.band, strict=True)])
        for i in (0, 1)
    ]
    if any(len(part) != len(middle) for part in ends):  # some are not finite
        return middle
    return [
        dataclasses.replace(bin_, least=low.least, largest=high.largest)
        for bin_, low, high in zip(middle, *ends, strict=True)
    ]


def _band(bins: Sequence[Bin], x: Axis, y: Axis) -> str | None:
    if len(bins) < 2 or all(bin_.least == bin_.largest for bin_ in bins):
        return None
    upper = [(x.place(bin_.x), SPAN - y.place(bin_.largest)) for bin_ in bins]
    lower = [(x.place(bin_.x), SPAN - y.place(bin_.least)) for bin_ in reversed(bins)]
    return path(upper + lower) + " Z"


def _dots(points: Sequence[tuple[float, float]]) -> str:
    """Lines of no length, whose round ends stay round however the drawing is stretched."""
    return " ".join(f"M{x:g},{y:g}h0" for x, y in points)
