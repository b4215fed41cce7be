"""The command `benchmarks plan`: measures what is left, predicts what was held back, prints."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import hosts
from benchmarks.plan import cells as cells_
from benchmarks.plan import fitting
from benchmarks.plan.fitting import Cell
from tfdp.base.atomic_files import replace_text
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

WITHIN = 0.15


@dataclasses.dataclass(frozen=True)
class PlanCellsOptions:
    """The choices of one sitting.

    Raises:
      ValueError: A value is out of its range.

    >>> PlanCellsOptions(minutes=0).published
    False
    """

    results: pathlib.Path = option(
        pathlib.Path("docs/plan/cells.jsonl"), "the file of finished cells (%(default)s)"
    )
    minutes: float | None = option(
        None,
        "how long to measure; 0: only show what is there (until all is)",
        at_least=0,
        example="30",
    )
    rounds: int = option(
        1,
        "fresh runs of each group, of which the quietest counts; those whose steps spread most "
        "are repeated first (%(default)s)",
        at_least=1,
    )
    timeout_seconds: float = option(300.0, "seconds for each group of cells (%(default)g)", above=0)
    published: bool = option(False, "show published curves instead")

    def __post_init__(self) -> None:
        check(self)

    @property
    def alone(self) -> pathlib.Path:
        """The file of the models' times on one rank alone."""
        return self.results.with_name("alone.json")


def add_plan(commands: argparse._SubParsersAction) -> None:
    """Adds `plan` to the benchmarks."""
    add_command(
        commands,
        "plan",
        PlanCellsOptions,
        _plan,
        help="steps that `tfdp plan` predicts, beside the same steps measured",
        description="Builds hosts as network namespaces with limited links (Linux, root), trains "
        "three models on 2, 3 and 4 of them at 50, 200 and 1,000 Mbit/s by four topologies, with "
        "and without compression, and compares the time of a step with the prediction, whose "
        "costs of the engine are fitted to other models on other numbers of hosts. The same "
        "command goes on where it stopped.",
    )


def _plan(options: PlanCellsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    try:
        return run(options)
    except (hosts.HostsError, ValueError) as error:
        parser.error(str(error))


def run(options: PlanCellsOptions, console: Console | None = None) -> int:
    """Measures until the time is up, and prints the table.

    Cost: 27 groups of three to twelve cells, 40 to 90 s each on two cores.

    Args:
      options: The options.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where a group failed.

    Raises:
      HostsError: The hosts cannot be built here.
      ValueError: The file of results cannot be read.
    """
    console = console or Console(width=100)
    if options.published:
        from benchmarks.plan.published import published_table

        console.print(published_table())
        return 0
    failed = _measured(options, console)
    records = cells_.read(options.results)
    if not records or not options.alone.exists():
        console.print("Nothing is measured so far.")
        return 1 if failed else 0
    alone = fitting.read_alone(options.alone)
    every = fitting.cells(records)
    rows = list(fitting.held_back(every, alone))
    console.print(cells_table(rows))
    for line in (*summary(rows), *grid(rows)):
        console.print(line, soft_wrap=True, highlight=False)
    fit = fitting.fitted(every, alone)
    console.print(f"Fitted to all cells: {fit}", soft_wrap=True, highlight=False)
    return 1 if failed else 0


def _measured(options: PlanCellsOptions, console: Console) -> int:
    """Measures the groups that are left, while there is time; returns how many failed."""
    began, failed = time.monotonic(), 0
    if options.minutes == 0:
        return 0
    if not options.alone.exists():
        # With the one thread that `tfdp run` gives a rank that shares two cores.
        os.environ.update(TF_NUM_INTRAOP_THREADS="1", OMP_NUM_THREADS="1")
        found = run_for_json("benchmarks.plan.alone", [], options.timeout_seconds)
        if isinstance(found, ChildFailure):
            console.print(str(found), style="red", markup=False, soft_wrap=True)
            return 1
        replace_text(options.alone, json.dumps(found) + "\n")
    for group in list(cells_.left(cells_.read(options.results), options.rounds)):
        if options.minutes is not None and time.monotonic() - began >= 60 * options.minutes:
            break
        with console.status(str(group)):
            result = cells_.measure(group, options.timeout_seconds)
        if isinstance(result, ChildFailure):
            failed += 1
            console.print(str(result), style="red", markup=False, soft_wrap=True)
        else:
            cells_.append(options.results, result)
    return failed


def cells_table(rows: Sequence[tuple[Cell, float]]) -> Table:
    """Returns a row for each cell, what was measured beside what was predicted.

    Args:
      rows: Each cell and its prediction.
    """
    table = Table(
        title="A step, measured and predicted by costs fitted to other models and hosts",
        caption="seconds; measured: the median of 3 to 10 steps, and their range",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    names = ("hosts", "Mbit/s", "model", "sent", "topology", "measured", "range", "predicted", "x")
    for name in names:
        table.add_column(name, justify="left" if name in ("model", "sent", "topology") else "right")
    for cell, seconds in sorted(rows, key=_place):
        group, ratio = cell.group, seconds / cell.median
        sent = group.sending.partition("=")[2].replace("ErrorFeedback", "EF") or "whole"
        table.add_row(
            str(group.ranks),
            str(group.rate),
            cell.model,
            sent,
            cell.topology,
            f"{cell.median:.3f}",
            f"{min(cell.seconds):.3f}-{max(cell.seconds):.3f}",
            f"{seconds:.3f}",
            f"{ratio:.2f}" + ("" if is_within(ratio) else " *"),
        )
    return table


def _place(row: tuple[Cell, float]) -> tuple:
    group = row[0].group
    return group.ranks, group.rate, row[0].model, group.sending, row[0].topology


def is_within(ratio: float) -> bool:
    """Returns whether a prediction is within 15 % of what was measured.

    >>> is_within(1.15), is_within(0.84)
    (True, False)
    """
    return abs(ratio - 1) <= WITHIN + 1e-9


def summary(rows: Sequence[tuple[Cell, float]]) -> list[str]:
    """Returns the share of cells within 15 %, of all and by each of their properties."""

    def share(kept: Sequence[tuple[Cell, float]]) -> str:
        good = sum(is_within(seconds / cell.median) for cell, seconds in kept)
        return f"{good} of {len(kept)}"

    ratios = [abs(math.log(seconds / cell.median)) for cell, seconds in rows]
    lines = [
        f"Within 15 %: {share(rows)} cells ({_percent(rows)}); the median deviation is "
        f"{100 * (math.exp(statistics.median(ratios)) - 1):.0f} %."
    ]
    keys = {
        "Mbit/s": lambda cell: cell.group.rate,
        "hosts": lambda cell: cell.group.ranks,
        "model": lambda cell: cell.model,
        "topology": lambda cell: cell.topology,
        "sent": lambda cell: cell.group.sending.partition("=")[2] or "whole",
    }
    for name, key in keys.items():
        parts = [
            f"{value}: {share([row for row in rows if key(row[0]) == value])}"
            for value in sorted({key(cell) for cell, _ in rows})
        ]
        lines.append(f"  by {name}: {', '.join(parts)}")
    return lines


def grid(rows: Sequence[tuple[Cell, float]]) -> list[str]:
    """Returns a Markdown table by model, hosts and rate: the cells within 15 %, and their error.

    The error is the median of the cells' deviations, without their signs.
    """
    rates = sorted({cell.group.rate for cell, _ in rows})
    lines = [
        f"| model | hosts | {' | '.join(f'{rate:,} Mbit/s' for rate in rates)} |",
        f"|---|---|{'---|' * len(rates)}",
    ]
    for model, ranks in sorted({(cell.model, cell.group.ranks) for cell, _ in rows}):
        shown = []
        for rate in rates:
            ratios = [
                seconds / cell.median
                for cell, seconds in rows
                if (cell.model, cell.group.ranks, cell.group.rate) == (model, ranks, rate)
            ]
            good = sum(map(is_within, ratios))
            error = statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else 0.0
            shown.append(f"{good} of {len(ratios)}, {error:.0%}" if ratios else "–")
        lines.append(f"| {model} | {ranks} | {' | '.join(shown)} |")
    return lines


def _percent(rows: Sequence[tuple[Cell, float]]) -> str:
    good = sum(is_within(seconds / cell.median) for cell, seconds in rows)
    return f"{good / len(rows):.0%}"
