"""Parts of a whole over steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tfdp.report.axes import SPAN, Axis, Bin, axis_for, thinned
from tfdp.report.drawing import MOST_TIPS, Chart, Shape, Words, from_above, path, rows, tips


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
        ...                    {"a": "A", "b": "B"}, x_label="step", y_label="s", words=str)
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
        return path(upper + lower[::-1]) + " Z"

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
        y_ticks=from_above(y),
        areas=tuple(
            Shape(part, area(low, high))
            for part, low, high in zip(names, tops[:-1], tops[1:], strict=True)
        ),
        lines=(),
        dots=(),
        marks=tuple(x.place(mark) for mark in marks if x.low < mark <= x.high),
        tips=tips(places, x, x_label, shown, cells),
        legend=tuple(names.items()),
        head=(x_label, *shown),
        rows=rows(places, cells),
    )


def _column(samples: Sequence[tuple[float, dict[str, float]]], part: str) -> list[Bin]:
    return thinned([(x, parts.get(part, 0.0)) for x, parts in samples], most=MOST_TIPS)
