"""The runs that a sweep still needs: a pure function of the finished runs.

For each cell, an optimizer at a batch:

1. try the starting learning rate, its half and its double, with seed 0;
2. while the best by validation accuracy is the lowest or the highest tried, try the next beyond;
3. run the other seeds at the best.

SGD is tuned so at the base batch only; at the others its rate is scaled linearly from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.recipes import RECIPES
from benchmarks.convergence.runs import Outcome, Run
from benchmarks.convergence.tasks import starting_rate

MOST_RATES = 7

Finished = Mapping[Run, Outcome]


def needed(options: ConvergenceOptions, finished: Finished) -> list[Run]:
    """Returns the runs that can be started now, the most wanted first; none if all are done.

    Args:
      options: The options of the sweep.
      finished: Any finished runs; those of other sweeps are ignored.
    """
    return [
        run
        for optimizer, batch in options.cells
        for run in _needed_by_cell(options, finished, optimizer, batch)
        if run not in finished
    ]


def chosen_rate(
    options: ConvergenceOptions, finished: Finished, optimizer: str, batch: int
) -> float | None:
    """Returns the learning rate at which the seeds of a cell run; None: not known yet."""
    if not RECIPES[optimizer].tuned_at_every_batch and batch != options.base_batch:
        base = chosen_rate(options, finished, optimizer, options.base_batch)
        return None if base is None else base * batch / options.base_batch
    rates = _rates_to_try(options, finished, optimizer, batch)
    if any(options.run(optimizer, batch, rate, 0) not in finished for rate in rates):
        return None
    return best_rate(options, finished, optimizer, batch, rates)


def is_at_edge(
    options: ConvergenceOptions, finished: Finished, optimizer: str, batch: int, rate: float
) -> bool:
    """Returns whether a swept rate is the lowest or the highest tried: a better may lie beyond."""
    if not RECIPES[optimizer].tuned_at_every_batch and batch != options.base_batch:
        return False
    rates = _rates_to_try(options, finished, optimizer, batch)
    return rate in (min(rates), max(rates))


def cell_outcomes(
    options: ConvergenceOptions, finished: Finished, optimizer: str, batch: int
) -> tuple[float | None, list[Outcome]]:
    """Returns the learning rate of a cell and its finished seeds.

    If the sweep of the cell is not complete, these are the best rate so far, and its finished
    seeds.
    """
    rate = chosen_rate(options, finished, optimizer, batch)
    if rate is None and (RECIPES[optimizer].tuned_at_every_batch or batch == options.base_batch):
        tried = [
            rate
            for rate in _rates_to_try(options, finished, optimizer, batch)
            if options.run(optimizer, batch, rate, 0) in finished
        ]
        rate = best_rate(options, finished, optimizer, batch, tried) if tried else None
    if rate is None:
        return None, []
    runs = [options.run(optimizer, batch, rate, seed) for seed in range(options.seeds)]
    return rate, [finished[run] for run in runs if run in finished]


def best_rate(
    options: ConvergenceOptions,
    finished: Finished,
    optimizer: str,
    batch: int,
    rates: Sequence[float],
) -> float:
    """Returns the rate with the best validation accuracy of seed 0; of equal rates the lower."""

    def quality(rate: float) -> tuple[float, float]:
        return _quality(finished[options.run(optimizer, batch, rate, 0)]), -rate

    return max(rates, key=quality)


def _quality(outcome: Outcome) -> float:
    return -1.0 if outcome.diverged else outcome.val_accuracy


def _needed_by_cell(
    options: ConvergenceOptions, finished: Finished, optimizer: str, batch: int
) -> list[Run]:
    rate = chosen_rate(options, finished, optimizer, batch)
    if rate is not None:
        return [options.run(optimizer, batch, rate, seed) for seed in range(options.seeds)]
    if not RECIPES[optimizer].tuned_at_every_batch and batch != options.base_batch:
        return []
    rates = _rates_to_try(options, finished, optimizer, batch)
    return [options.run(optimizer, batch, rate, 0) for rate in rates]


def _rates_to_try(
    options: ConvergenceOptions, finished: Finished, optimizer: str, batch: int
) -> list[float]:
    """Returns the first three rates, then one beyond while the best is at an edge, in order."""
    start = starting_rate(options.described_task, optimizer, batch)
    rates = [start, start * 2, start / 2]
    while len(rates) < MOST_RATES and all(
        options.run(optimizer, batch, rate, 0) in finished for rate in rates
    ):
        best = best_rate(options, finished, optimizer, batch, rates)
        if best == max(rates):
            rates.append(best * 2)
        elif best == min(rates):
            rates.append(best / 2)
        else:
            break
    return rates
