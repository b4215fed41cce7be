"""The runs that a sweep still needs: a pure function of the finished runs.

For each cell, such as an optimizer at a batch:

1. try the starting learning rate, its half and its double, with seed 0;
2. while the best by validation accuracy is the lowest or the highest tried, try the next beyond;
3. run the other seeds at the best.

A cell may take its rate from another one, times a factor: SGD at a large batch does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from benchmarks.convergence.runs import Outcome, Run

MOST_RATES = 7

Finished = Mapping[Run, Outcome]

# What names a cell: an optimizer and a batch, or a strategy.
Cell = tuple[Any, ...]


class Sweep(Protocol):
    """The options of a sweep, as far as they say what to run."""

    @property
    def seeds(self) -> int:
        """The number of runs at the best rate."""

    @property
    def cells(self) -> Sequence[Cell]:
        """The cells, the most wanted first."""

    def run_of(self, cell: Cell, learning_rate: float, seed: int) -> Run:
        """Returns a run of a cell."""

    def starting_rate(self, cell: Cell) -> float:
        """Returns the rate at which the sweep of a cell begins."""

    def base_of(self, cell: Cell) -> tuple[Cell, float] | None:
        """Returns the cell whose best rate, times the factor, is this one's; None: it is swept."""


def needed(options: Sweep, finished: Finished) -> list[Run]:
    """Returns the runs that can be started now, the most wanted first; none if all are done.

    Args:
      options: The options of the sweep.
      finished: Any finished runs; those of other sweeps are ignored.
    """
    return [
        run
        for cell in options.cells
        for run in _needed_by_cell(options, finished, cell)
        if run not in finished
    ]


def chosen_rate(options: Sweep, finished: Finished, cell: Cell) -> float | None:
    """Returns the learning rate at which the seeds of a cell run; None: not known yet."""
    based = options.base_of(cell)
    if based is not None:
        base, factor = based
        rate = chosen_rate(options, finished, base)
        return None if rate is None else rate * factor
    rates = _rates_to_try(options, finished, cell)
    if any(options.run_of(cell, rate, 0) not in finished for rate in rates):
        return None
    return best_rate(options, finished, cell, rates)


def is_at_edge(options: Sweep, finished: Finished, cell: Cell, rate: float) -> bool:
    """Returns whether a swept rate is the lowest or the highest tried: a better may lie beyond."""
    if options.base_of(cell) is not None:
        return False
    rates = _rates_to_try(options, finished, cell)
    return rate in (min(rates), max(rates))


def cell_outcomes(
    options: Sweep, finished: Finished, cell: Cell
) -> tuple[float | None, list[Outcome]]:
    """Returns the learning rate of a cell and its finished seeds.

    If the sweep of the cell is not complete, these are the best rate so far, and its finished
    seeds.
    """
    rate = chosen_rate(options, finished, cell)
    if rate is None and options.base_of(cell) is None:
        tried = [
            rate
            for rate in _rates_to_try(options, finished, cell)
            if options.run_of(cell, rate, 0) in finished
        ]
        rate = best_rate(options, finished, cell, tried) if tried else None
    if rate is None:
        return None, []
    runs = [options.run_of(cell, rate, seed) for seed in range(options.seeds)]
    return rate, [finished[run] for run in runs if run in finished]


def best_rate(
    options: Sweep,
    finished: Finished,
    cell: Cell,
    rates: Sequence[float],
) -> float:
    """Returns the rate with the best validation accuracy of seed 0; of equal rates the lower."""

    def quality(rate: float) -> tuple[float, float]:
        return _quality(finished[options.run_of(cell, rate, 0)]), -rate

    return max(rates, key=quality)


def _quality(outcome: Outcome) -> float:
    return -1.0 if outcome.diverged else outcome.val_accuracy


def _needed_by_cell(options: Sweep, finished: Finished, cell: Cell) -> list[Run]:
    rate = chosen_rate(options, finished, cell)
    if rate is not None:
        return [options.run_of(cell, rate, seed) for seed in range(options.seeds)]
    if options.base_of(cell) is not None:
        return []
    rates = _rates_to_try(options, finished, cell)
    return [options.run_of(cell, rate, 0) for rate in rates]


def _rates_to_try(options: Sweep, finished: Finished, cell: Cell) -> list[float]:
    """Returns the first three rates, then one beyond while the best is at an edge, in order."""
    start = options.starting_rate(cell)
    rates = [start, start * 2, start / 2]
    while len(rates) < MOST_RATES and all(
        options.run_of(cell, rate, 0) in finished for rate in rates
    ):
        best = best_rate(options, finished, cell, rates)
        if best == max(rates):
            rates.append(best * 2)
        elif best == min(rates):
            rates.append(best / 2)
        else:
            break
    return rates
