"""The benchmark of compression: how far what travels in fewer bits parts from one device."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.sending import made
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.bench_devices import split_cpu

if TYPE_CHECKING:
    import keras

    from tfdp.base.recording import Recorder
    from tutorials.demo import TrainingRun

_SEED = 0
_BATCH = 64

# The compressions, as a program writes them after `from tfdp.compression import *`.
COMPRESSIONS = (
    "None",
    'Cast("bfloat16")',
    'Cast("float16")',
    "Int8()",
    "ErrorFeedback(Int8())",
    "Sign()",
    "ErrorFeedback(Sign())",
    "TopK(0.01)",
    "ErrorFeedback(TopK(0.01))",
    "ErrorFeedback(RandomK(0.1))",
    "ErrorFeedback(PowerSGD(4))",
)


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

    Cost: 11 trainings for each number of replicas, some four minutes on two cores for two.

    Args:
      replicas: The numbers of replicas.
      epochs: The epochs of each training.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    split_cpu(max(replicas))
    alone = _trained(1, "None", epochs)
    table = Table(
        title=f"After {_epochs(epochs)}, against one device",
        caption="n: replicas. KB/step: sent by each replica. difference: the largest of a weight "
        "over the largest weight. accuracy: on the test split.",
    )
    for column in ("n", "compression", "KB/step", "difference", "loss", "accuracy"):
        is_name = column == "compression"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    table.add_row("1", "", "", "", *_results(alone.run))
    for count in replicas:
        for name in COMPRESSIONS:
            found = _trained(count, name, epochs)
            table.add_row(
                str(count),
                name,
                f"{found.bytes_per_step / 1e3:.1f}",
                f"{difference(alone.run.weights, found.run.weights):.1e}",
                *_results(found.run),
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


@dataclasses.dataclass(frozen=True)
class Measured:
    """A training, and the bytes of gradients that each replica sent in a step, on average."""

    run: TrainingRun
    bytes_per_step: float


def _trained(replicas: int, name: str, epochs: int) -> Measured:
    import tfdp
    from tfdp.base.recording import Recorder
    from tutorials import datasets
    from tutorials.demo import train

    if replicas == 1:
        run = train(
            datasets.load("digits"), strategy=None, epochs=epochs, batch_size=_BATCH, seed=_SEED
        )
        return Measured(run, 0.0)
    strategy = tfdp.DataParallelStrategy(
        devices=[f"CPU:{index}" for index in range(replicas)], compression=made(name)
    )
    recorder = Recorder(strategy.extended.worker_devices)
    run = train(
        datasets.load("digits"),
        strategy=strategy,
        epochs=epochs,
        batch_size=_BATCH,
        seed=_SEED,
        callbacks=[_attaching(recorder)],
    )
    reading = recorder.read()
    return Measured(run, float((reading.of("bytes_sent") / reading.of("steps")).mean()))


def _attaching(recorder: Recorder) -> keras.callbacks.Callback:
    import keras

    class Attach(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            recorder.attach(model)

    return Attach()


def _results(run: TrainingRun) -> tuple[str, str]:
    return f"{run.history['loss'][-1]:.5f}", f"{run.test_accuracy:.4f}"


def _epochs(count: int) -> str:
    return "an epoch" if count == 1 else f"{count} epochs"
