"""The benchmark of compression: how far what travels in fewer bits parts from one device."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.devices import split_cpu
from tfdp.command_line import add_command, check, option, require, set_environment

if TYPE_CHECKING:
    from tfdp.demo.train import TrainingRun

_SEED = 0
_BATCH = 64

# The compressions by the name that the table shows; None is a dtype that is not compressed.
COMPRESSIONS = {"none": None, 'Cast("bfloat16")': "bfloat16", 'Cast("float16")': "float16"}


@dataclasses.dataclass(frozen=True)
class CompressionOptions:
    """The choices of one table."""

    replicas: tuple[int, ...] = option(
        (2, 4, 8), "numbers of logical CPU devices (2,4,8)", at_least=2, example="2,4,8"
    )
    epochs: int = option(1, "epochs of each training (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_compression(commands: argparse._SubParsersAction) -> None:
    """Adds `compression` to the benchmarks."""
    add_command(
        commands,
        "compression",
        CompressionOptions,
        _compression,
        help="how far compressed gradients part from one device",
        description="Trains the demo's network on scikit-learn's digits on one device and on "
        "replicas, with each compression of gradients, from the same weights and over the same "
        "batches, and prints how far they part.",
    )


def _compression(options: CompressionOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "sklearn"], parser)
    set_environment()
    return run(options.replicas, options.epochs)


def run(replicas: Sequence[int], epochs: int, console: Console | None = None) -> int:
    """Trains once on one device, and once for each compression and number; prints a table.

    Cost: 10 trainings for three numbers of replicas, some three minutes on two cores.

    Args:
      replicas: The numbers of replicas.
      epochs: The epochs of each training.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    split_cpu(max(replicas))
    alone = _trained(1, None, epochs)
    table = Table(
        title=f"After {_epochs(epochs)}, against one device",
        caption="difference: the largest of a weight over the largest weight.",
    )
    for column in ("replicas", "compression", "difference", "loss", "test accuracy"):
        table.add_column(column, justify="left" if column == "compression" else "right")
    table.add_row("1", "", "", *_results(alone))
    for count in replicas:
        for name, dtype in COMPRESSIONS.items():
            found = _trained(count, dtype, epochs)
            table.add_row(
                str(count),
                name,
                f"{difference(alone.weights, found.weights):.1e}",
                *_results(found),
            )
    (console or Console()).print(table)
    return 0


def difference(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Returns the largest difference of two lists of arrays, over the largest value of the first.

    >>> difference([np.array([1.0, -4.0])], [np.array([1.0, -3.0])])
    0.25
    """
    largest = max(float(np.abs(array).max()) for array in expected)
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in pairs) / largest


def _trained(replicas: int, dtype: str | None, epochs: int) -> TrainingRun:
    import tfdp
    from tfdp.demo import images
    from tfdp.demo.train import train

    strategy = None
    if replicas > 1:
        strategy = tfdp.DataParallelStrategy(
            devices=[f"CPU:{index}" for index in range(replicas)],
            compression=None if dtype is None else tfdp.compression.Cast(dtype),
        )
    return train(
        images.load("digits"), strategy=strategy, epochs=epochs, batch_size=_BATCH, seed=_SEED
    )


def _results(run: TrainingRun) -> tuple[str, str]:
    return f"{run.history['loss'][-1]:.5f}", f"{run.test_accuracy:.4f}"


def _epochs(count: int) -> str:
    return "an epoch" if count == 1 else f"{count} epochs"
