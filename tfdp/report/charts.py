"""Charts as geometry: lines with bands, and stacked areas and bars.

The page's template draws them as inline SVG, stretched to the width that there is, with labels
beside it that are not stretched. Nothing here knows HTML.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from tfdp.report.axes import SPAN, Axis, Bin, Points, Tick, axis_for, thinned
from tfdp.report.words import count, number

_MOST_TIPS = 100
_MOST_ROWS = 24
# Up to so many points each has a dot.
_MOST_DOTS = 30

Words = Callable[[float | None], str]


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
        y_ticks=_from_above(y),
        areas=tuple(
            Shape(one.style, band) for one, bins in drawn if (band := _band(bins, x, y)) is not None
        ),
        lines=tuple(
            Shape(one.style, _path([(x.place(b.x), SPAN - y.place(b.median)) for b in bins]))
            for one, bins in drawn
            if len(bins) > 1
        ),
        dots=tuple(
            Shape(one.style, _dots([(x.place(b.x), SPAN - y.place(b.median)) for b in bins]))
            for one, bins in drawn
            if len(first) <= _MOST_DOTS
        ),
        marks=tuple(x.place(mark) for mark in marks if x.low < mark <= x.high),
        tips=_tips(places, x, lambda place: _tip(x_label, place, names, cells(place))),
        legend=tuple((one.style, one.name) for one, _ in drawn),
        head=(x_label, *names),
        rows=tuple((number(place), *cells(place)) for place in _some(places, _MOST_ROWS)),
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


def area_chart(
    title: str,
    samples: Sequence[tuple[float, dict[str, float]]],
    names: dict[str, str],
    *,
    x_label: str,
    y_label: str,
    words: Words,
    marks: Iterable[float] = (),
) -> Chart | None:
    """Parts of a whole over steps, one on the other; None for fewer than two samples.

    Args:
        title: what it shows.
        samples: (x, value of each part) by growing x.
        names: the parts from below to above, with their names; a part is its own CSS class.
        x_label: "step".
        y_label: the unit.
        words: how a value is written.
        marks: where vertical lines are.

    Example:
        >>> chart = area_chart("Step", [(1, {"a": 1.0, "b": 1.0}), (2, {"a": 2.0, "b": 2.0})],
        ...                    {"a": "A", "b": "B"}, x_label="step", y_label="s", words=number)
        >>> [shape.path for shape in chart.areas]
        ['M0,750 L1000,500 L1000,1000 L0,1000 Z', 'M0,500 L1000,0 L1000,500 L0,750 Z']
    """
    if len(samples) < 2:
        return None
    columns = {part: _column(samples, part) for part in names}
    places = [bin_.x for bin_ in next(iter(columns.values()))]
    tops = [[0.0] * len(places)]
    for bins in columns.values():
        tops.append([low + bin_.median for low, bin_ in zip(tops[-1], bins, strict=True)])
    x, y = Axis(places[0], places[-1]), axis_for(tops[-1], zero=True)

    def area(low: list[float], high: list[float]) -> str:
        upper = [(x.place(p), SPAN - y.place(v)) for p, v in zip(places, high, strict=True)]
        lower = [(x.place(p), SPAN - y.place(v)) for p, v in zip(places, low, strict=True)]
        return _path(upper + lower[::-1]) + " Z"

    def cells(place: float) -> tuple[str, ...]:
        index = places.index(place)
        return tuple(words(bins[index].median) for bins in columns.values())

    shown = tuple(names.values())
    return Chart(
        title=title,
        description=f"{title} by {x_label}; at the end "
        + ", ".join(f"{name} {words(columns[part][-1].median)}" for part, name in names.items())
        + ".",
        x_label=x_label,
        y_label=y_label,
        x_ticks=x.ticks(6, whole=True),
        y_ticks=_from_above(y),
        areas=tuple(
            Shape(part, area(low, high))
            for part, low, high in zip(names, tops[:-1], tops[1:], strict=True)
        ),
        lines=(),
        dots=(),
        marks=tuple(x.place(mark) for mark in marks if x.low < mark <= x.high),
        tips=_tips(places, x, lambda place: _tip(x_label, place, shown, cells(place))),
        legend=tuple(names.items()),
        head=(x_label, *shown),
        rows=tuple((number(place), *cells(place)) for place in _some(places, _MOST_ROWS)),
    )


def _column(samples: Sequence[tuple[float, dict[str, float]]], part: str) -> list[Bin]:
    return thinned([(x, parts.get(part, 0.0)) for x, parts in samples], most=_MOST_TIPS)


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
    return _path(upper + lower) + " Z"


def _from_above(axis: Axis) -> tuple[Tick, ...]:
    return tuple(Tick(100 - tick.percent, tick.label) for tick in axis.ticks())


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:g},{y:g}" for x, y in points)


def _dots(points: Sequence[tuple[float, float]]) -> str:
    """Lines of no length, whose round ends stay round however the drawing is stretched."""
    return " ".join(f"M{x:g},{y:g}h0" for x, y in points)


def _tips(places: Sequence[float], x: Axis, text: Callable[[float], str]) -> tuple[Tip, ...]:
    """Strips side by side, each as far as the middle between neighbours."""
    shown = _some(places, _MOST_TIPS)
    ends = [x.place((a + b) / 2) for a, b in itertools.pairwise(shown)]
    return tuple(
        Tip(left, round(right - left, 1), text(place))
        for place, left, right in zip(shown, [0.0, *ends], [*ends, float(SPAN)], strict=True)
    )


def _tip(x_label: str, place: float, names: Sequence[str], cells: Sequence[str]) -> str:
    lines = [f"{x_label} {number(place)}"]
    return "\n".join(lines + [f"{name} {cell}" for name, cell in zip(names, cells, strict=True)])


def _some(places: Sequence[float], most: int) -> list[float]:
    """At most `most` of them, evenly, with the first and the last."""
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]
