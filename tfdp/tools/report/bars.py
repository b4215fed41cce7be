"""The charts of bars side by side, one for each rank or run, of one or several parts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tfdp.tools.report.charts import Chart, Words, by_round_numbers, drawable
from tfdp.tools.report.svg import Said, drawn, ink

_LINE, _BAR, _GAP, _AXIS = 16, 16, 8, 28  # the heights of the chart's elements, in pixels
_LABEL = 30  # characters of a line beside the bar's number


def bar_chart(
    title: str,
    values: Sequence[tuple[str, Mapping[str, float]]],
    names: Mapping[str, str],
    *,
    unit: str,
    words: Words,
    of: str = "rank",
    scale: float = 1.0,
) -> Chart | None:
    """Returns bars of parts that lie end to end; None if there is none, or none is above 0.

    Args:
      title: The title of the chart.
      values: The label of each bar, and its parts, none below 0.
      names: The parts from left to right, with their names; a part is a colour of the page.
      unit: The unit of the axis.
      words: Writes a value.
      of: What each bar stands for.
      scale: The factor of the axis' numbers, such as 1000 for milliseconds.

    >>> values, names = [("rank 0", {"input": 1.0, "compute": 3.0})], {"compute": "work"}
    >>> bar_chart("Step", values, names, unit="s", words=str).rows
    (('rank 0', '3.0'),)
    """
    used = {part: name for part, name in names.items() if any(part in v for _, v in values)}
    bars = [(label, {part: v[part] for part in used if part in v}) for label, v in values]
    totals = [sum(parts.values()) for _, parts in bars]
    high = max(totals, default=0.0)
    if high <= 0:
        return None
    labels = [textwrap.wrap(label, _LABEL) or [""] for label, _ in bars]
    bottom = sum(_LINE * len(lines) + _BAR + _GAP for lines in labels)

    def paint(axes: Axes, said: Said) -> None:
        top = 0.0
        for (label, parts), lines, total in zip(bars, labels, totals, strict=True):
            right = axes.get_yaxis_transform()
            text = axes.text(1, top, "x", va="top", ha="right", weight="bold", transform=right)
            text.set(gid=said(words(total)), in_layout=False)
            for line in lines:
                axes.text(0, top, "x", va="top", in_layout=False, gid=said(line))
                top += _LINE
            left = 0.0
            for part, value in parts.items():
                width = drawable(scale * value)
                bar = Rectangle((left, top), width, _BAR, color=ink(part), linewidth=0)
                gid = said(f"{label}: {used[part]}: {words(value)}")
                bar.set(gid=gid, in_layout=False)
                axes.add_artist(bar)
                left += width
            top += _BAR + _GAP
        axes.set_ylim(bottom, 0)
        axes.yaxis.set_visible(False)
        by_round_numbers(axes.xaxis, (0.0, drawable(scale * high)), 5)

    several = len(used) > 1
    longest = bars[totals.index(high)][0]
    return Chart(
        title=title,
        description=f"{title}, {len(bars)} bars; the longest, {longest}, is {words(high)}.",
        unit=unit,
        svg=drawn(paint, bottom + _AXIS),
        legend=tuple(used.items()),
        head=(of, *used.values(), *(["together"] if several else [])),
        rows=tuple(
            (label, *(words(parts.get(part)) for part in used), *([words(total)] * several))
            for (label, parts), total in zip(bars, totals, strict=True)
        ),
    )
