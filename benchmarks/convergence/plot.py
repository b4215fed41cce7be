"""The picture: the accuracies over batches and over epochs."""

import pathlib
import statistics
from typing import Any

from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.report import Cell, Cells
from benchmarks.convergence.tasks import OPTIMIZERS

_COLOURS = dict(zip(OPTIMIZERS, ("C3", "C1", "C2", "C4", "C0"), strict=True))

# An accuracy that lies further than this below the next better one, in points, has failed. It is
# marked at the lower edge, so that it does not press the others together.
_GAP = 15.0

# The points of accuracy below the best that the curves over epochs show.
_POINTS_BY_EPOCH = 30.0


def draw(options: ConvergenceOptions, cells: Cells, path: pathlib.Path) -> None:
    """Draws test accuracy by batch, and validation accuracy by epoch at the largest batch.

    Args:
      options: The options of the sweep.
      cells: The cells, some of them with outcomes.
      path: The path of the PNG, which is replaced.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_batch, by_epoch = figure.subplots(1, 2)
    _draw_by_batch(by_batch, options, cells)
    _draw_by_epoch(by_epoch, options, cells)
    figure.suptitle(options.described_task.title)
    figure.savefig(path, dpi=120)


def _draw_by_batch(axes: Any, options: ConvergenceOptions, cells: Cells) -> None:
    reference = cells["sgd", options.base_batch]
    means = [cell.mean for cell in cells.values() if cell.mean is not None]
    floor = _floor([100 * mean for mean in means])
    lost: dict[int, list[str]] = {}
    for optimizer, of_optimizer in _by_optimizer(cells).items():
        # Optimizers that were not trained at the base batch themselves start from the reference.
        points = ({options.base_batch: reference} if reference.outcomes else {}) | of_optimizer
        shown = []
        for batch, cell in sorted(points.items()):
            if cell.mean is not None and 100 * cell.mean >= floor:
                shown.append((batch, cell))
            elif cell.outcomes:
                end = "diverged" if cell.mean is None else f"{100 * cell.mean:.1f}"
                lost.setdefault(batch, []).append(f"{optimizer} {end}")
        axes.errorbar(
            [batch for batch, _ in shown],
            [100 * (cell.mean or 0) for _, cell in shown],
            [100 * cell.half_range for _, cell in shown],
            marker="o",
            capsize=3,
            label=optimizer,
            color=_COLOURS[optimizer],
        )
    for batch, ends in lost.items():
        axes.plot(batch, floor, "xk", markersize=9, clip_on=False)
        axes.annotate(
            "\n".join(ends),
            (batch, floor),
            (0, 10),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize="small",
        )
    if reference.mean is not None:
        axes.axhline(100 * reference.mean, color="grey", linewidth=0.8, linestyle="--")
    if lost:
        axes.set_ylim(bottom=floor)
    alone = "" if options.all_at_base else f"; at {options.base_batch} only sgd was trained"
    axes.set(
        xscale="log",
        xlabel=f"batch{alone}",
        ylabel="test accuracy (%)",
        title=f"after {options.epochs} epochs",
    )
    ticks = sorted({batch for _, batch in cells})
    axes.set_xticks(ticks, [str(batch) for batch in ticks])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")


def _floor(means: list[float]) -> float:
    """Returns the lower edge: below all means but those that lie under a gap."""
    best = lowest = max(means, default=0.0)
    for mean in sorted(means, reverse=True):
        if lowest - mean > _GAP:
            break
        lowest = mean
    return lowest - max(1.0, 0.5 * (best - lowest))  # room for the marks


def _draw_by_epoch(axes: Any, options: ConvergenceOptions, cells: Cells) -> None:
    largest = max(batch for _, batch in cells)
    best = 0.0
    for (optimizer, batch), cell in cells.items():
        base = (optimizer, batch) == ("sgd", options.base_batch)
        if not cell.outcomes or (batch != largest and not base):
            continue
        curve = [100 * value for value in _mean_curve(cell)]
        best = max([best, *curve])
        axes.plot(
            range(1, len(curve) + 1),
            curve,
            label=f"{optimizer} at {batch:,}" + (": diverged" if cell.mean is None else ""),
            color="grey" if base else _COLOURS[optimizer],
            linestyle="--" if base else "-",
        )
    if best > _POINTS_BY_EPOCH:
        axes.set_ylim(best - _POINTS_BY_EPOCH, best + 1)
    axes.set(
        xlim=(1, max(2, options.epochs or 2)),
        xlabel="epoch",
        ylabel="validation accuracy (%)",
        title=f"batch {largest:,}, against sgd at {options.base_batch}",
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="best")


def _by_optimizer(cells: Cells) -> dict[str, dict[int, Cell]]:
    found: dict[str, dict[int, Cell]] = {}
    for (optimizer, batch), cell in cells.items():
        found.setdefault(optimizer, {})[batch] = cell
    return found


def _mean_curve(cell: Cell) -> list[float]:
    """Returns the mean over the seeds that did not diverge, or over all if all of them did."""
    whole = [each for each in cell.outcomes if not each.diverged] or list(cell.outcomes)
    curves = [each.val_accuracy_by_epoch for each in whole]
    return [statistics.mean(values) for values in zip(*curves, strict=False)]
