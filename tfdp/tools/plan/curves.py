"""The scaling curve as a chart of the report's kind, over numbers of ranks by powers of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tfdp.base.words import number, percent
from tfdp.tools.prediction import Prediction
from tfdp.tools.report.charts import NUMBERS, Chart
from tfdp.tools.report.svg import Said, drawn, ink

_HEIGHT = 190  # pixels
_MOST_TICKS = 6

Lines = Sequence[tuple[str, str, Sequence[Prediction]]]


def efficiency_chart(lines: Lines) -> Chart:
    """Returns the efficiency by number of ranks.

    Args:
      lines: For each line its name, its colour and its predictions.
    """
    return _chart(
        "Efficiency",
        "the rate of a rank over that of one alone",
        lines,
        [[one.efficiency for one in predictions] for _, _, predictions in lines],
        percent,
        logarithmic=False,
    )


def rate_chart(lines: Lines) -> Chart:
    """Returns the examples per second by number of ranks, beside what is ideal.

    Args:
      lines: For each line its name, its colour and its predictions.
    """
    _, _, first = lines[0]
    ideal = [
        first[0].examples_per_second / first[0].ranks / first[0].efficiency * one.ranks
        for one in first
    ]
    return _chart(
        "Examples per second",
        "of all ranks",
        [*lines, ("ideal", "s2", first)],
        [*([one.examples_per_second for one in found] for _, _, found in lines), ideal],
        number,
        logarithmic=True,
    )


def _chart(
    title: str,
    unit: str,
    lines: Lines,
    values: Sequence[Sequence[float]],
    words: Callable[[float], str],
    logarithmic: bool,
) -> Chart:
    ranks = sorted({one.ranks for _, _, predictions in lines for one in predictions})
    by_rank = [
        dict(zip([one.ranks for one in predictions], row, strict=True))
        for (_, _, predictions), row in zip(lines, values, strict=True)
    ]

    def paint(axes: Axes, said: Said) -> None:
        for (name, colour, predictions), row in zip(lines, values, strict=True):
            axes.plot(
                [one.ranks for one in predictions],
                row,
                color=ink(colour),
                linestyle="--" if name == "ideal" else "-",
                marker="o",
                clip_on=False,
            )
        axes.set_xscale("log", base=2)
        shown = ranks[:: max(1, -(-len(ranks) // _MOST_TICKS))]
        axes.xaxis.set_major_locator(FixedLocator([float(rank) for rank in shown]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(NUMBERS)
        axes.set_xlabel("ranks", gid=said("ranks"))
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(NUMBERS)
        else:
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))

    first, last = by_rank[0][ranks[0]], by_rank[0][ranks[-1]]
    return Chart(
        title=title,
        description=f"{title} by ranks: {words(first)} at {ranks[0]}, {words(last)} at "
        f"{ranks[-1]}.",
        unit=unit + (", logarithmic" if logarithmic else ""),
        svg=drawn(paint, _HEIGHT),
        legend=tuple(
            (f"{colour} dashed" if name == "ideal" else colour, name) for name, colour, _ in lines
        ),
        head=("ranks", *(name for name, _, _ in lines)),
        rows=tuple(
            (f"{rank:,}", *(words(row[rank]) if rank in row else "–" for row in by_rank))
            for rank in ranks
        ),
    )
