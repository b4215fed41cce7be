"""The results of ways to send less: a table, also in Markdown, and accuracies over bytes."""

import statistics
from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.convergence.bytes_options import BytesOptions
from benchmarks.convergence.report import Cell, summarize
from benchmarks.convergence.runs import Outcome, Run
from benchmarks.sending import named
from tfdp.base.atomic_files import replace_text

_COLORS = {
    "whole gradients": "tab:blue",
    "with error feedback": "tab:orange",
    "compressed": "tab:green",
    "LocalSGD": "tab:purple",
    "DiLoCo": "tab:red",
    "Delayed": "tab:brown",
}
_LINES = ("LocalSGD", "DiLoCo")  # whose points differ by H alone

_HEADER = ("", "MB", "fewer", "accuracy", "difference", "rate")


def show_bytes(options: BytesOptions, finished: Mapping[Run, Outcome], console: Console) -> None:
    """Prints the table, writes it as Markdown if asked to, and draws the picture."""
    cells = by_strategy(options, finished)
    found = rows(options, cells)
    table = Table(title=_title(options), caption=_legend(options))
    for column in _HEADER:
        justify: Literal["right", "left"] = "right" if column else "left"
        table.add_column(column, justify=justify, no_wrap=bool(column), overflow="fold")
    for row in found:
        table.add_row(*row)
    console.print(table)
    if options.table is not None:
        replace_text(options.table, _markdown(options, found))
        console.print(f"Table: {options.table}", soft_wrap=True, highlight=False)
    if any(cell.mean is not None for cell in cells.values()):
        _draw(options, cells)
        console.print(f"Picture: {options.output}", soft_wrap=True, highlight=False)


def by_strategy(options: BytesOptions, finished: Mapping[Run, Outcome]) -> dict[str, Cell]:
    """Returns for each strategy what is finished of it."""
    cells = summarize(options, finished, options.reported)
    return {strategy: cell for (strategy,), cell in cells.items()}


def megabytes(cell: Cell) -> float | None:
    """Returns the megabytes that a replica sent in a training; None without a finished one."""
    counted = [each.bytes_sent for each in cell.outcomes if each.bytes_sent and not each.diverged]
    return statistics.mean(counted) / 1e6 if counted else None


def rows(options: BytesOptions, cells: Mapping[str, Cell]) -> list[list[str]]:
    """Returns the table's rows, one for each strategy."""
    reference = cells[""]
    whole = megabytes(reference)
    found = []
    for strategy, cell in cells.items():
        sent = megabytes(cell)
        row = [named(strategy), "" if sent is None else f"{sent:.1f}", "", "", "", ""]
        if sent and whole:
            row[2] = f"{whole / sent:.0f} x" if whole / sent >= 9.5 else f"{whole / sent:.1f} x"
        if cell.mean is not None:
            row[3] = f"{100 * cell.mean:.2f} ± {100 * cell.half_range:.2f}"
            if reference.mean is not None and strategy:
                row[4] = f"{100 * (cell.mean - reference.mean):+.2f}"
        if cell.diverged:
            row[3] += f" ({cell.diverged} of {len(cell.outcomes)} diverged)".lstrip()
        if cell.learning_rate is not None:
            row[5] = f"{cell.learning_rate:.3g}" + _mark(options, cell)
        found.append(row)
    return found


def _mark(options: BytesOptions, cell: Cell) -> str:
    """Returns what is not final about a cell."""
    if not cell.tuned:
        return ", not final"
    count = len(cell.outcomes)
    seeds = "" if count == options.seeds else f", {count} of {options.seeds} seeds"
    return (", the last tried" if cell.at_edge else "") + seeds


def _title(options: BytesOptions) -> str:
    examples = f", {options.examples:,} examples" if options.examples else ""
    return (
        f"{options.described_task.title}: {options.epochs} epochs{examples}, "
        f"{options.replicas} replicas"
    )


def _legend(options: BytesOptions) -> str:
    return (
        f"MB: sent by a replica in the training, of gradients and weights. fewer: whole gradients' "
        f"over it. accuracy: % of the {options.reported} split, the mean of {options.seeds} seeds "
        "± half their range, at the rate that was best on the validation split. difference: to "
        f"whole gradients. {options.optimizer}, batches of {options.batch}, rate warmed up over a "
        "tenth, then decayed."
    )


def _markdown(options: BytesOptions, found: list[list[str]]) -> str:
    lines = [
        f"### {_title(options)}",
        "",
        "| " + " | ".join(_HEADER) + " |",
        "|---" + "|---:" * (len(_HEADER) - 1) + "|",
        *("| `" + row[0] + "` | " + " | ".join(row[1:]) + " |" for row in found),
        "",
        _legend(options),
    ]
    return "\n".join(lines) + "\n"


def _draw(options: BytesOptions, cells: Mapping[str, Cell]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    families: dict[str, list[tuple[float, Cell, str]]] = {}
    for strategy, cell in cells.items():
        sent = megabytes(cell)
        if sent is not None and cell.mean is not None:
            families.setdefault(_family(strategy), []).append((sent, cell, named(strategy)))
    number = 0
    for family, points in families.items():
        points.sort(key=lambda point: point[0])
        if family in _LINES:
            axes.plot(*zip(*map(_place, points), strict=True), color=_COLORS[family], linewidth=1)
        for point in points:
            number += 1  # beside the point, for the names of near ones would cover each other
            axes.errorbar(
                *_place(point),
                100 * point[1].half_range,
                marker="o",
                capsize=3,
                linestyle="none",
                color=_COLORS[family],
                label=f"{number}  {point[2]}",
            )
            axes.annotate(
                str(number),
                _place(point),
                (4, 4),
                textcoords="offset points",
                color=_COLORS[family],
            )
    reference = cells[""].mean
    if reference is not None:
        axes.axhline(100 * reference, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log",
        xlabel="MB sent by a replica in the training",
        ylabel=f"{options.reported} accuracy (%)",
    )
    figure.suptitle(_title(options))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(options.output, dpi=120)


def _place(point: tuple[float, Cell, str]) -> tuple[float, float]:
    sent, cell, _ = point
    return sent, 100 * (cell.mean or 0)


def _family(strategy: str) -> str:
    """Returns the family of a strategy, by which its point has its colour.

    >>> _family("compression=ErrorFeedback(Int8())"), _family("synchronization=DiLoCo(50)")
    ('with error feedback', 'DiLoCo')
    """
    name = named(strategy)
    if strategy.startswith("synchronization="):
        return name.partition("(")[0]
    if "ErrorFeedback" in name or "MomentumCorrection" in name:
        return "with error feedback"
    return "compressed" if strategy else name
