"""Bars side by side, one for each rank or run, of one or several parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tfdp.report.axes import Axis, Tick, axis_for


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a bar: its CSS class, its place and width of 1000, and what the pointer shows."""

    style: str
    left: float
    width: float
    text: str


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar: what it is of, its parts from left to right, and its number in words."""

    label: str
    segments: tuple[Segment, ...]
    value: str


@dataclasses.dataclass(frozen=True)
class Bars:
    """Bars for the template.

    Args:
        title: what they show.
        description: the same with numbers, for those who do not see it.
        unit: of the axis.
        bars: from above to below.
        ticks: of the axis, with places from the left.
        legend: (style, name).
        head: the columns of the table below.
        rows: its cells.
        note: what the reader must know.
    """

    title: str
    description: str
    unit: str
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def stacked_bars(
    title: str,
    values: Sequence[tuple[str, Mapping[str, float]]],
    names: Mapping[str, str],
    *,
    unit: str,
    words: Callable[[float | None], str],
    of: str = "rank",
    scale: float = 1.0,
    note: str = "",
) -> Bars | None:
    """Bars of parts that lie end to end; None without any.

    Args:
        title: what they show.
        values: the label of each bar, and its parts, none below 0.
        names: the parts from left to right with their names; a part is its own CSS class.
        unit: of the axis.
        words: how a value is written.
        of: what each bar stands for.
        scale: what the axis' numbers are multiplied by, such as 1000 for milliseconds.
        note: what the reader must know.

    Example:
        >>> bars = stacked_bars("Step", [("rank 0", {"a": 1.0, "b": 3.0})], {"a": "A", "b": "B"},
        ...                     unit="s", words=str)
        >>> [(s.style, s.left, s.width, s.text) for s in bars.bars[0].segments], bars.bars[0].value
        ([('a', 0.0, 250.0, 'A: 1.0'), ('b', 250.0, 750.0, 'B: 3.0')], '4.0')
    """
    used = {part: name for part, name in names.items() if any(part in v for _, v in values)}
    totals = [sum(parts.values()) for _, parts in values]
    if not used or max(totals) <= 0:
        return None
    high = max(totals)
    shown = axis_for([scale * total for total in totals], zero=True)
    axis = Axis(0.0, shown.high / scale)
    several = len(used) > 1
    rows = []
    for (label, parts), total in zip(values, totals, strict=True):
        cells = [words(parts.get(part)) for part in used]
        rows.append((label, *cells, *([words(total)] if several else [])))
    longest = values[totals.index(high)][0]
    return Bars(
        title=title,
        description=f"{title}, {len(values)} bars; the longest, {longest}, is {words(high)}.",
        unit=unit,
        bars=tuple(
            Bar(label, _segments(parts, used, axis, words), words(total))
            for (label, parts), total in zip(values, totals, strict=True)
        ),
        ticks=shown.ticks(5),
        legend=tuple(used.items()) if several else (),
        head=(of, *used.values(), *(["together"] if several else [])),
        rows=tuple(rows),
        note=note,
    )


def _segments(
    parts: Mapping[str, float],
    names: Mapping[str, str],
    axis: Axis,
    words: Callable[[float | None], str],
) -> tuple[Segment, ...]:
    segments, low = [], 0.0
    for part, name in names.items():
        if part not in parts:
            continue
        left, right = axis.place(low), axis.place(low + parts[part])
        segments.append(
            Segment(part, left, round(right - left, 1), f"{name}: {words(parts[part])}")
        )
        low += parts[part]
    return tuple(segments)
