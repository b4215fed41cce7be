"""The charts of lines and of bars: what the template draws, the same as a table, and in a sentence.

A drawing's units are pixels where it is as wide as :data:`WIDTH`, about a phone's width. Its
colours are classes of the page's style, by the names of series and parts.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from tfdp.base.words import count, number
from tfdp.tools.report.axes import Points, drawable, logarithmic_axis, round_axis, thinned

WIDTH, HEIGHT = 320, 190
_TOP, _BOTTOM, _RIGHT = 8, 146, 312  # the ends of the area that has lines
_DIGIT, _GAP = 8, 9  # the width of a digit, and the place between numbers and lines
_MOST_DOTS = 30  # up to this number of points, each has a dot
_MOST_STRIPS = 100  # that say their values
_MOST_ROWS = 24  # of a table

_RESTART = (("mark", "restart"),)

Words = Callable[[float | None], str]


@dataclasses.dataclass(frozen=True)
class Line:
    """A drawn line: its CSS classes, and the paths of the line, its band and its dots."""

    classes: str
    path: str
    band: str
    dots: str


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The drawing of lines, in pixels.

    Args:
      left: Where the area of the lines begins.
      across, up: (place, number) of each number below, and to the left.
      lines: The lines.
      marks: The places of vertical lines, which mean restarts.
      strips: (left end, width, what it says to the pointer) of strips side by side.
    """

    left: float
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    marks: tuple[float, ...]
    strips: tuple[tuple[float, float, str], ...]


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar: its label, its value in words, and (part, percent of the longest, words) of each."""

    label: str
    value: str
    parts: tuple[tuple[str, float, str], ...]


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart for the template, of lines or of bars.

    Args:
      title: The title.
      description: The chart in a sentence, with numbers, for those who do not see it.
      legend: Each colour as (CSS classes, name).
      head: The columns of the table below the chart.
      rows: The cells of the table.
      unit: The numbers' unit, and whether their axis is logarithmic.
      note: What the reader must know of the chart.
      drawing: The drawing of lines.
      bars: The bars.
    """

    title: str
    description: str
    legend: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    unit: str = ""
    note: str = ""
    drawing: Drawing | None = None
    bars: tuple[Bar, ...] = ()


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

    @property
    def classes(self) -> str:
        """The CSS classes of the line, and of its name in the legend."""
        return f"{self.ink} dashed" if self.dashed else self.ink


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    unit: str = "",
    zero: bool = False,
    logarithmic_from: float = math.inf,
    x_logarithmic: bool = False,
    marks: Iterable[float] = (),
    note: str = "",
    words: Words = number,
) -> Chart | None:
    """Returns lines over steps, epochs or ranks; None if no point is finite.

    Long lines are drawn as medians of neighbours, with a band from the least to the largest value.

    Args:
      title: The title of the chart.
      series: The lines.
      x_label: "step", "epoch" or "ranks".
      unit: The unit of the values.
      zero: Whether 0 is on the axis, as for times and rates.
      logarithmic_from: The axis goes by powers of ten if all values are above 0 and the largest is
        more than so many times the smallest.
      x_logarithmic: Whether places are shown by their logarithms, with their own numbers below.
      marks: The places of vertical lines, which mean restarts.
      note: What the reader must know of the chart.
      words: Writes a value.

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
    ends = [drawable(end) for one in every for end in (one.least, one.median, one.largest)]
    low, high = min(ends), max(ends)
    logarithmic = low > 0 and high > logarithmic_from * low
    if logarithmic:
        y = logarithmic_axis(low, high)
    else:
        y = round_axis(*(min(low, 0.0), max(high, 0.0)) if zero else (low, high), most=5)
    if x_logarithmic:
        x = logarithmic_axis(places[0], places[-1], _evenly(places, 6))
    else:
        x = round_axis(places[0], places[-1], most=4, whole=True).within(places[0], places[-1])
    by_name = {one.name: {bin_.x: bin_ for bin_ in bins} for one, bins in lines}

    def cells(place: float) -> tuple[str, ...]:
        found = [bins.get(place) for bins in by_name.values()]
        return tuple(words(bin_.median if bin_ else None) for bin_ in found)

    left = _GAP + _DIGIT * max(len(words(tick)) for tick in y.ticks)

    def right_to(place: float) -> float:
        return left + x.share(place) * (_RIGHT - left)

    def down_to(value: float) -> float:
        return _BOTTOM - y.share(drawable(value)) * (_BOTTOM - _TOP)

    drawn = []
    for one, bins in lines:
        xs = [right_to(bin_.x) for bin_ in bins]
        least, middle, largest = (
            list(zip(xs, [down_to(getattr(bin_, end)) for bin_ in bins], strict=True))
            for end in ("least", "median", "largest")
        )
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in middle) if len(bins) <= _MOST_DOTS else ""
        has_band = len(bins) > 1 and least != largest
        band = _path([*least, *reversed(largest)]) if has_band else ""
        drawn.append(Line(one.classes, _path(middle), band, dots))
    shown = _evenly(places, _MOST_STRIPS)
    middles = (right_to((a + b) / 2) for a, b in itertools.pairwise(shown))
    strips = []
    between = itertools.pairwise([left, *middles, _RIGHT])
    for place, (begin, end) in zip(shown, between, strict=True):
        told = [f"{name} {cell}" for name, cell in zip(by_name, cells(place), strict=True)]
        strips.append((begin, end - begin, "\n".join([f"{x_label} {number(place)}", *told])))
    restarts = [mark for mark in marks if places[0] < mark <= places[-1]]
    missing = sum(not math.isfinite(value) for one, _ in lines for _, value in one.points)
    if missing:
        note = f"{note} {count(missing, 'value')} not finite and not drawn.".strip()
    ranges = [
        f"{one.name} from {words(bins[0].median)} to {words(bins[-1].median)}"
        for one, bins in lines
    ]
    points = count(len(lines[0][0].points), "point")
    return Chart(
        title=title,
        description=f"{title.removesuffix(f' by {x_label}')} by {x_label}: {points}, "
        f"{'; '.join(ranges)}.",
        unit=", ".join(filter(None, [unit, "logarithmic" if logarithmic else ""])),
        legend=(*((one.classes, one.name) for one, _ in lines), *_RESTART[: len(restarts)]),
        head=(x_label, *by_name),
        rows=tuple((number(place), *cells(place)) for place in _evenly(places, _MOST_ROWS)),
        note=note,
        drawing=Drawing(
            left,
            tuple((right_to(tick), number(tick)) for tick in x.ticks),
            tuple((down_to(tick), words(tick)) for tick in y.ticks),
            tuple(drawn),
            tuple(map(right_to, restarts)),
            tuple(strips),
        ),
    )


def bar_chart(
    title: str,
    values: Sequence[tuple[str, Mapping[str, float]]],
    names: Mapping[str, str],
    *,
    words: Words,
    of: str = "rank",
) -> Chart | None:
    """Returns bars of parts that lie end to end; None if there is none, or none is above 0.

    Args:
      title: The title of the chart.
      values: The label of each bar, and its parts, none below 0.
      names: The parts from left to right, with their names; a part is a colour of the page.
      words: Writes a value.
      of: What each bar stands for.

    >>> values, names = [("rank 0", {"input": 1.0, "compute": 3.0})], {"compute": "work"}
    >>> bar_chart("Step", values, names, words=str).rows
    (('rank 0', '3.0'),)
    """
    used = {part: name for part, name in names.items() if any(part in v for _, v in values)}
    kept = [(label, {part: v[part] for part in used if part in v}) for label, v in values]
    totals = [sum(parts.values()) for _, parts in kept]
    high = max(totals, default=0.0)
    if high <= 0:
        return None
    bars = [
        Bar(
            label,
            words(total),
            tuple(
                (part, 100 * drawable(value) / drawable(high), f"{used[part]}: {words(value)}")
                for part, value in parts.items()
            ),
        )
        for (label, parts), total in zip(kept, totals, strict=True)
    ]
    several = len(used) > 1
    longest = kept[totals.index(high)][0]
    return Chart(
        title=title,
        description=f"{title}, {len(bars)} bars; the longest, {longest}, is {words(high)}.",
        legend=tuple(used.items()),
        head=(of, *used.values(), *(["together"] if several else [])),
        rows=tuple(
            (label, *(words(parts.get(part)) for part in used), *([bar.value] * several))
            for (label, parts), bar in zip(kept, bars, strict=True)
        ),
        bars=tuple(bars),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _evenly(places: Sequence[float], most: int) -> list[float]:
    """Returns at most `most` of the places, evenly spaced, with the first and the last."""
    if len(places) <= most:
        return list(places)
    return [places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)]
