"""The picture of an elastic run: its loss on top of one device's, while its ranks change."""

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from benchmarks import faults_training
from benchmarks.faults_run import Fault, Run, one_run
from tfdp.base.command_line import add_command, check, option, require, set_environment

_EPOCHS = 14
_PAUSE_SECONDS = 0.06  # after each step: the launcher looks once a second whether to change ranks
_STEPS_BETWEEN = 24  # of an attempt, before its ranks change
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class ElasticOptions:
    """The choices of one picture."""

    ranks: tuple[int, ...] = option(
        (4, 2, 3),
        "the ranks, one number after the other, with commas between (4,2,3): where they become "
        "fewer one is killed, where they become more they stop at a checkpoint",
        at_least=1,
        metavar="NUMBERS",
    )
    output: pathlib.Path | None = option(
        None, "draw the losses there", writes=(".png", ".svg", ".pdf"), metavar="FILE"
    )

    def __post_init__(self) -> None:
        check(self)
        if any(before == after for before, after in itertools.pairwise(self.ranks)):
            raise ValueError(
                "`ranks` must change from one number to the next; received "
                f"{','.join(map(str, self.ranks))}; do `--ranks 4,2,3`."
            )


def add_elastic(commands: argparse._SubParsersAction) -> None:
    """Adds `elastic` to the benchmarks."""
    add_command(
        commands,
        "elastic",
        ElasticOptions,
        _elastic,
        help="the loss of a training whose number of ranks changes, on top of one device's",
        description="Trains once with one rank, and once with ranks whose number changes under "
        "`tfdp run -n MIN:MAX`; prints the largest differences of losses and weights, and draws "
        "both losses.",
    )


def _elastic(options: ElasticOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"] + ["matplotlib"] * (options.output is not None), parser)
    set_environment()
    return run(options)


def changes(ranks: Sequence[int]) -> list[Fault]:
    """Returns what changes the number of ranks, as `faults_training` takes it.

    >>> [(fault["kind"], fault["slots"]) for fault in changes([4, 2, 3])]
    [('kill', 2), ('resize', 3)]
    """
    return [
        {
            "phase": "step",
            "kind": "kill" if after < before else faults_training.RESIZE,
            "rank": before - 1 if after < before else 0,
            "skip": _STEPS_BETWEEN,
            "delay": 0.0,
            "slots": after,
        }
        for before, after in itertools.pairwise(ranks)
    ]


def run(options: ElasticOptions, console: Console | None = None) -> int:
    """Trains both, prints how far they are from each other, and draws the picture.

    Returns:
      The exit code: 0; 1 where the ranks did not come to these numbers, or the weights differ by
      more than 1e-5 of the largest.
    """
    console = console or Console()
    length = {"epochs": _EPOCHS, "pause_seconds": _PAUSE_SECONDS}
    alone = one_run(1, [], True, {"epochs": _EPOCHS})
    most = max(options.ranks)
    elastic = one_run(options.ranks[0], changes(options.ranks), True, length, most=most)
    went = tuple(ranks for ranks, _ in itertools.groupby(ranks for ranks, _ in elastic.losses))
    console.print(f"{len(elastic.losses)} steps, by {','.join(map(str, went))} ranks")
    if went != options.ranks or not alone.weights or not elastic.weights:
        console.print("The ranks did not come to these numbers, or did not end.")
        return 1
    losses = np.array([[loss for _, loss in each.losses] for each in (alone, elastic)])
    largest = max(np.abs(value).max() for value in alone.weights[0])
    apart = max(
        np.abs(value.astype("float64") - other).max() / largest
        for weights in elastic.weights
        for value, other in zip(weights, alone.weights[0], strict=True)
    )
    of_losses = np.abs(losses[1] / losses[0] - 1).max()
    console.print(f"largest difference of a loss from one device's, relative: {of_losses:.1e}")
    console.print(f"largest difference of a weight, relative to the largest: {apart:.1e}")
    if options.output is not None:
        draw(alone, elastic, options.output)
    return 0 if apart < _TOLERANCE else 1


def draw(alone: Run, elastic: Run, path: pathlib.Path) -> None:
    """Draws the losses, and below how far they are from each other."""
    from matplotlib.figure import Figure

    losses = np.array([[loss for _, loss in each.losses] for each in (alone, elastic)])
    ranks = [ranks for ranks, _ in elastic.losses]
    steps = np.arange(1, len(ranks) + 1)
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    upper.plot(steps, losses[0], color="0.75", linewidth=6, label="one device")
    begin = 0
    for number, group in itertools.groupby(ranks):
        end = begin + len(list(group))
        upper.plot(steps[begin:end], losses[1][begin:end], linewidth=1.5, label=f"{number} ranks")
        begin = end
        for axes in (upper, lower):
            axes.axvline(end + 0.5, color="0.8", linewidth=0.8, zorder=0)
    upper.set_ylabel("loss, mean of the epoch so far")
    upper.legend(frameon=False)
    lower.semilogy(steps, np.maximum(np.abs(losses[1] / losses[0] - 1), 1e-9), color="black")
    lower.set(xlabel="step", ylabel="difference,\nrelative")
    figure.savefig(path, dpi=150)
