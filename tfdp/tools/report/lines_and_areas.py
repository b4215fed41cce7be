"""The charts of lines and areas over steps or epochs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from tfdp.base.words import count, number
from tfdp.tools.report.charts import (
    NUMBERS,
    Chart,
    Points,
    Words,
    by_round_numbers,
    drawable,
    thinned,
)
from tfdp.tools.report.svg import Said, drawn, ink

_HEIGHT = 190  # pixels
_MOST_DOTS = 30  # up to this number of points, each has a dot
_MOST_STRIPS = 100  # that say their values
_MOST_ROWS = 24  # of a table

_RESTART = (("mark", "restart"),)

Cells = Callable[[float], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Series:
    """The data of one line.

    Args:
      name: The name in the legend.
      points: (x, y) by growing x.
      ink: One of the page's colours.
      dashed: Whether the line is dashed.
      band: (least, largest) of each point, shown behind the line; None: the band of the points that
        are drawn as one.
    """

    name: str
    points: Points
    ink: str
    dashed: bool = False
    band: Sequence[tuple[float, float]] | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    unit: str = "",
    zero: bool = False,
    may_be_logarithmic: bool = False,
    marks: Iterable[float] = (),
    note: str = "",
) -> Chart | None:
    """Returns lines over steps or epochs; None if no point is finite.

    Long lines are drawn as medians of neighbours, with a band from the least to the largest value.

    Args:
      title: The title of the chart.
      series: The lines.
      x_label: "step" or "epoch".
      unit: The unit of the values.
      zero: Whether 0 is on the axis, as for times and rates.
      may_be_logarithmic: Whether the axis goes by powers of ten if all values are above 0 and the
        largest is more than 50 times the smallest.
      marks: The places of vertical lines, which mean restarts.
      note: What the reader must know of the chart.

    >>> chart = line_chart("Loss", [Series("loss", [(1, 2.0), (3, 1.0)], "s0")], x_label="step")
    >>> chart.description, chart.rows
    ('Loss by step: 2 points, loss from 2 to 1.', (('1', '2'), ('3', '1')))
    """
    lines = [(one, thinned(one.points, band=one.band)) for one in series]
    lines = [(one, bins) for one, bins in lines if bins]
    if not lines:
        return None
    every = [bin_ for _, bins in lines for bin_ in bins]
    places = sorted({bin_.x for bin_ in every})
    low, high = min(bin_.least for bin_ in every), max(bin_.largest for bin_ in every)
    logarithmic = may_be_logarithmic and low > 0 and high > 50 * low
    by_name = {one.name: {bin_.x: bin_ for bin_ in bins} for one, bins in lines}
    restarts = _inside(marks, places)

    def cells(place: float) -> tuple[str, ...]:
        found = [bins.get(place) for bins in by_name.values()]
        return tuple(number(bin_.median if bin_ else None) for bin_ in found)

    def paint(axes: Axes, said: Said) -> None:
        for one, bins in lines:
            x = [bin_.x for bin_ in bins]
            least = [drawable(bin_.least) for bin_ in bins]
            largest = [drawable(bin_.largest) for bin_ in bins]
            if len(bins) > 1 and least != largest:
                axes.fill_between(x, least, largest, color=ink(one.ink), alpha=0.2, linewidth=0)
            axes.plot(
                x,
                [drawable(bin_.median) for bin_ in bins],
                color=ink(one.ink),
                linestyle="--" if one.dashed else "-",
                marker="o" if len(lines[0][1]) <= _MOST_DOTS else "",
                clip_on=False,
            )
        if logarithmic:
            _by_powers_of_ten(axes, low, high)
        else:
            ends = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
            by_round_numbers(axes.yaxis, (drawable(ends[0]), drawable(ends[1])), 5)
        _finish(axes, x_label, places, restarts)
        _strips(axes, said, x_label, places, tuple(by_name), cells)

    missing = sum(not math.isfinite(value) for one, _ in lines for _, value in one.points)
    if missing:
        note = f"{note} {count(missing, 'value')} not finite and not drawn.".strip()
    ranges = [
        f"{one.name} from {number(bins[0].median)} to {number(bins[-1].median)}"
        for one, bins in lines
    ]
    points = count(len(lines[0][0].points), "point")
    return Chart(
        title=title,
        description=f"{title.removesuffix(f' by {x_label}')} by {x_label}: {points}, "
        f"{'; '.join(ranges)}.",
        unit=", ".join(filter(None, [unit, "logarithmic" if logarithmic else ""])),
        svg=drawn(paint, _HEIGHT),
        legend=(
            *((f"{one.ink} dashed" if one.dashed else one.ink, one.name) for one, _ in lines),
            *_RESTART[: len(restarts)],
        ),
        head=(x_label, *by_name),
        rows=_rows(places, cells),
        note=note,
    )


def area_chart(
    title: str,
    samples: Sequence[tuple[float, Mapping[str, float]]],
    names: Mapping[str, str],
    *,
    x_label: str,
    unit: str,
    words: Words,
    marks: Iterable[float] = (),
) -> Chart | None:
    """Returns parts of a whole over steps, one upon the other; None for fewer than two samples.

    Args:
      title: The title of the chart.
      samples: (x, value of each part) by growing x.
      names: The parts from below to above, with their names; a part is a colour of the page.
      x_label: The label of the axis: "step".
      unit: The unit of the values.
      words: Writes a value.
      marks: The places of vertical lines, which mean restarts.

    >>> samples = [(1, {"input": 1.0, "compute": 3.0}), (2, {"input": 2.0, "compute": 5.0})]
    >>> names = {"input": "wait", "compute": "work"}
    >>> area_chart("Step", samples, names, x_label="step", unit="s", words=str).description
    'Step by step; at the end wait 2.0, work 5.0.'
    """
    if len(samples) < 2:
        return None
    columns = [
        thinned([(x, parts.get(part, 0.0)) for x, parts in samples], most=_MOST_STRIPS)
        for part in names
    ]
    places = [bin_.x for bin_ in columns[0]]
    restarts = _inside(marks, places)
    shown = tuple(names.values())

    def cells(place: float) -> tuple[str, ...]:
        index = places.index(place)
        return tuple(words(bins[index].median) for bins in columns)

    def paint(axes: Axes, said: Said) -> None:
        heights = [[drawable(bin_.median) for bin_ in bins] for bins in columns]
        axes.stackplot(places, *heights, colors=[ink(part) for part in names], linewidth=0)
        by_round_numbers(axes.yaxis, (0.0, max(map(sum, zip(*heights, strict=True)))), 5)
        _finish(axes, x_label, places, restarts)
        _strips(axes, said, x_label, places, shown, cells)

    last = [f"{name} {cell}" for name, cell in zip(shown, cells(places[-1]), strict=True)]
    return Chart(
        title=title,
        description=f"{title} by {x_label}; at the end {', '.join(last)}.",
        unit=unit,
        svg=drawn(paint, _HEIGHT),
        legend=(*names.items(), *_RESTART[: len(restarts)]),
        head=(x_label, *shown),
        rows=_rows(places, cells),
    )


def _inside(marks: Iterable[float], places: Sequence[float]) -> list[float]:
    return [mark for mark in marks if places[0] < mark <= places[-1]]


def _by_powers_of_ten(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(low, drawable(high))
    factors = (1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=factors, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(NUMBERS)


def _finish(axes: Axes, x_label: str, places: Sequence[float], restarts: list[float]) -> None:
    """Gives the axes of lines or areas their numbers, and shows the restarts."""
    axes.set_xlabel(x_label)
    axes.xaxis.grid(False)
    first, last = places[0], places[-1]
    if first == last:
        first, last = first - 0.5, last + 0.5
    by_round_numbers(axes.xaxis, (first, last), 4, whole=True)
    axes.set_xlim(first, last)
    for mark in restarts:
        axes.axvline(mark, color=ink("open"), linestyle=":")


def _strips(
    axes: Axes,
    said: Said,
    x_label: str,
    places: Sequence[float],
    names: Sequence[str],
    cells: Cells,
) -> None:
    """Lays strips side by side that say their values, each up to the middle between neighbours."""
    left, right = axes.get_xlim()
    shown = _evenly(places, _MOST_STRIPS)
    ends = [left, *((a + b) / 2 for a, b in itertools.pairwise(shown)), right]
    for place, (low, high) in zip(shown, itertools.pairwise(ends), strict=True):
        values = [f"{name} {cell}" for name, cell in zip(names, cells(place), strict=True)]
        gid = said("\n".join([f"{x_label} {number(place)}", *values]))
        strip = Rectangle((low, 0), high - low, 1, color=ink("strip"), linewidth=0, gid=gid)
        strip.set(transform=axes.get_xaxis_transform(), clip_on=False, in_layout=False)
        axes.add_artist(strip)


def _rows(places: Sequence[float], cells: Cells) -> tuple[tuple[str, ...], ...]:
    return tuple((number(place), *cells(place)) for place in _evenly(places, _MOST_ROWS))


def _evenly(places: Sequence[float], most: int) -> list[float]:
    """Returns at most `most` of the places, evenly spaced, with the first and the last."""
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]
