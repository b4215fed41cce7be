"""The results of the finished runs: a table, also in Markdown, of optimizers and batches."""

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.recipes import RECIPES
from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.sweep import Sweep, cell_outcomes, chosen_rate, is_at_edge


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one optimizer at one batch.

    Args:
      learning_rate: The rate of the outcomes: the best, or the best so far; None: nothing is known.
      outcomes: The outcomes of its seeds, as far as they are finished.
      tuned: Whether the learning rate is final.
      at_edge: Whether the rate is the lowest or the highest that was tried.
      split: The split whose accuracy counts, "test" or "validation".
    """

    learning_rate: float | None
    outcomes: tuple[Outcome, ...]
    tuned: bool
    at_edge: bool = False
    split: str = "test"

    @property
    def mean(self) -> float | None:
        """The mean accuracy of the seeds that did not diverge; None without such a seed."""
        found = self._accuracies
        return statistics.mean(found) if found else None

    @property
    def half_range(self) -> float:
        """Half the distance between the best seed and the worst."""
        found = self._accuracies
        return (max(found) - min(found)) / 2 if found else 0.0

    @property
    def diverged(self) -> int:
        """The number of seeds that diverged."""
        return sum(outcome.diverged for outcome in self.outcomes)

    @property
    def _accuracies(self) -> list[float]:
        of_test = self.split == "test"
        return [
            outcome.test_accuracy if of_test else outcome.val_accuracy
            for outcome in self.outcomes
            if not outcome.diverged
        ]


Cells = Mapping[tuple[str, int], Cell]


def summarize(
    options: Sweep, finished: Mapping[Run, Outcome], split: str = "test"
) -> dict[tuple[Any, ...], Cell]:
    """Returns all cells of the sweep, from any set of finished runs."""
    cells = {}
    for cell in options.cells:
        rate, outcomes = cell_outcomes(options, finished, cell)
        tuned = chosen_rate(options, finished, cell) is not None
        at_edge = rate is not None and is_at_edge(options, finished, cell, rate)
        cells[cell] = Cell(rate, tuple(outcomes), tuned, at_edge, split)
    return cells


def rows(options: ConvergenceOptions, cells: Cells) -> list[list[str]]:
    """Returns the table's rows: a header, then each optimizer with a column for each batch."""
    batches = sorted({batch for _, batch in cells})
    base = cells["sgd", options.base_batch].mean
    header = ["optimizer", *(f"{batch:,}" for batch in batches)]
    return [
        header,
        *(
            [
                optimizer,
                *(
                    _show(options, cells[optimizer, batch], base, batch)
                    if (optimizer, batch) in cells
                    else ""
                    for batch in batches
                ),
            ]
            for optimizer in dict.fromkeys(optimizer for optimizer, _ in cells)
        ),
    ]


def rich_table(options: ConvergenceOptions, cells: Cells) -> Table:
    """Returns the table for a terminal."""
    header, *body = rows(options, cells)
    table = Table(title=_title(options), caption=_legend(options), show_lines=True)
    for name in header:
        table.add_column(name, justify="left" if name == "optimizer" else "right")
    for row in body:
        table.add_row(*(cell.replace("; ", "\n") for cell in row))
    return table


def markdown(options: ConvergenceOptions, cells: Cells) -> str:
    """Returns the table in Markdown, with the conditions of the measurement."""
    header, *body = rows(options, cells)
    lines = [
        f"### {_title(options)}",
        "",
        "| " + " | ".join(header) + " |",
        "|---" + "|---:" * (len(header) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in body),
        "",
        _legend(options),
        "",
        *(f"- {name}: {RECIPES[name].description}; {_course(name)}." for name in _names(cells)),
        "",
        f"Trained with {_versions(cells)}.",
    ]
    return "\n".join(lines) + "\n"


def mix(options: ConvergenceOptions) -> str:
    """Describes how the batches are composed of replicas and accumulation."""
    parts = []
    for batch in sorted({batch for _, batch in options.cells}):
        run = options.run("sgd", batch, 1.0, 0)
        accumulated = run.gradient_accumulation_steps
        parts.append(
            f"{batch:,} = {options.replicas} replicas x {run.step_batch // options.replicas}"
            + (f" x {accumulated} accumulated" if accumulated > 1 else "")
        )
    return "; ".join(parts)


def _versions(cells: Cells) -> str:
    """Returns the versions of every library that a run was trained with."""
    found: dict[str, set[str]] = {}
    for outcome in (outcome for cell in cells.values() for outcome in cell.outcomes):
        for name, version in outcome.versions.items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' and '.join(sorted(all_))}" for name, all_ in found.items())


def _names(cells: Cells) -> list[str]:
    return list(dict.fromkeys(optimizer for optimizer, _ in cells))


def _course(name: str) -> str:
    tuned = "tuned at every batch" if RECIPES[name].tuned_at_every_batch else "tuned at the base"
    return f"linear warm-up over 10%, then decay of power {RECIPES[name].decay_power:g}; {tuned}"


def _title(options: ConvergenceOptions) -> str:
    return (
        f"{options.described_task.title}: test accuracy (%) by batch, {options.epochs} epochs"
        + (f", {options.examples:,} examples" if options.examples else "")
    )


def _legend(options: ConvergenceOptions) -> str:
    return (
        f"Mean of {options.seeds} seeds ± half their range; in brackets the difference to sgd at "
        f"{options.base_batch}; the learning rate. Fewer seeds, or a rate that is not final, are "
        f"marked. Batches: {mix(options)}."
    )


def _show(options: ConvergenceOptions, cell: Cell, base: float | None, batch: int) -> str:
    if cell.learning_rate is None:
        return "-"
    count = len(cell.outcomes)
    if cell.mean is None:
        text = "diverged" if cell.diverged else "-"
    else:
        text = f"{100 * cell.mean:.2f}"
        if count - cell.diverged > 1:
            text += f" ± {100 * cell.half_range:.2f}"
        if base is not None and batch != options.base_batch:
            text += f" ({100 * (cell.mean - base):+.2f})"
        if cell.diverged:
            text += f"; {cell.diverged} of {count} diverged"
    parts = [text, f"rate {cell.learning_rate:.3g}"]
    if cell.tuned and cell.at_edge:
        parts[-1] += ", the last tried"
    if not cell.tuned:
        parts.append("not final")
    elif count < options.seeds:
        parts.append(f"{count} of {options.seeds} seeds")
    return "; ".join(parts)
