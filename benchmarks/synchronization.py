"""The benchmark of synchronization: accuracy after equal epochs, and the bytes of a step."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.sending import made
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.bench_devices import split_cpu

if TYPE_CHECKING:
    from tutorials.demo import TrainingRun

_BATCH = 16

# The learning rates that are tried: that of `make demo`, and less.
_RATES = (0.02, 0.005)

# The synchronizations, as a program writes them after `from tfdp.synchronization import *`.
SYNCHRONIZATIONS = (
    "None",
    "LocalSGD(1)",
    "LocalSGD(10)",
    "LocalSGD(50)",
    "DiLoCo(10)",
    "DiLoCo(50)",
    "DiLoCo(10, fragments=4)",
    "Gossip()",
    "Gossip('ring')",
)


@dataclasses.dataclass(frozen=True)
class SynchronizationOptions:
    """The choices of one table."""

    replicas: tuple[int, ...] = option(
        (4,), "numbers of logical CPU devices (4)", at_least=2, example="2,4"
    )
    epochs: int = option(3, "epochs of each training (%(default)s)", at_least=1)
    seeds: int = option(2, "trainings of each kind and rate (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_synchronization(commands: argparse._SubParsersAction) -> None:
    """Adds `synchronization` to the benchmarks."""
    add_command(
        commands,
        "synchronization",
        SynchronizationOptions,
        _synchronization,
        help="accuracy and bytes of replicas that train by themselves",
        description="Trains the demo's network on scikit-learn's digits on replicas, with each "
        "synchronization, from the same weights and over the same batches, and prints accuracies "
        "and bytes.",
    )


def _synchronization(options: SynchronizationOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "sklearn"], parser)
    set_environment()
    return run(options.replicas, options.epochs, options.seeds)


def run(replicas: Sequence[int], epochs: int, seeds: int, console: Console | None = None) -> int:
    """Trains with each synchronization on each number of replicas; prints a table.

    Each is trained with two learning rates. The table shows the one whose training loss ends lower.

    Cost: 18 trainings for each number of replicas and each seed.

    Args:
      replicas: The numbers of replicas.
      epochs: The epochs of each training.
      seeds: The number of trainings of each kind.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    split_cpu(max(replicas))
    table = Table(
        title=f"After {epochs} epoch{'s' * (epochs > 1)}, {seeds} seed{'s' * (seeds > 1)}",
        caption="KB a step: of gradients or weights, sent by each replica. accuracy: on the test "
        "split, the mean and the range over seeds.",
    )
    for column in ("replicas", "synchronization", "KB a step", "rate", "loss", "accuracy", "range"):
        table.add_column(column, justify="left" if column == "synchronization" else "right")
    for count in replicas:
        for name in SYNCHRONIZATIONS:
            kinds = {
                rate: [_trained(count, name, epochs, rate, seed) for seed in range(seeds)]
                for rate in _RATES
            }
            losses = {
                rate: sum(each.history["loss"][-1] for each in found) / seeds
                for rate, found in kinds.items()
            }
            rate = min(losses, key=lambda rate: losses[rate])
            accuracies = [each.test_accuracy for each in kinds[rate]]
            sent = bytes_per_step(made(name), _steps(), _bytes_of_weights(), count)
            table.add_row(
                str(count),
                name,
                f"{sent / 1e3:.1f}",
                str(rate),
                f"{losses[rate]:.4f}",
                f"{sum(accuracies) / seeds:.4f}",
                f"{min(accuracies):.3f}-{max(accuracies):.3f}",
            )
    (console or Console()).print(table)
    return 0


def bytes_per_step(synchronization: Any, steps: int, weights: int, replicas: int) -> float:
    """Returns the bytes that each replica sends in a step, on average over an epoch.

    Of the gradients, or of the weights: 2(n-1)/n times their bytes at each sum over n replicas.

    Args:
      synchronization: An object of `tfdp.synchronization`; None: gradients are summed.
      steps: The updates of an epoch, which ends rounds.
      weights: The bytes of the trainable weights.
      replicas: The number of replicas.

    >>> from tfdp.synchronization import LocalSGD
    >>> [round(bytes_per_step(each, 90, 1000, 2), 2) for each in (None, LocalSGD(9), LocalSGD(50))]
    [1000.0, 111.11, 22.22]
    >>> from tfdp.synchronization import Gossip
    >>> [round(bytes_per_step(Gossip(each), 90, 1000, 4), 2) for each in ("exponential", "ring")]
    [1016.67, 2016.67]
    """
    mean = 2 * (replicas - 1) / replicas
    if synchronization is None:
        return weights * mean
    mixings = synchronization.mixings(replicas)
    if mixings is None:
        return -(-steps // synchronization.every) / steps * weights * mean
    # All mixings of a graph have the same number of neighbours.
    return (steps // synchronization.every * len(mixings[0]) + mean) / steps * weights


def _trained(replicas: int, name: str, epochs: int, rate: float, seed: int) -> TrainingRun:
    import keras

    import tfdp
    from tutorials import datasets
    from tutorials.demo import train

    strategy = tfdp.DataParallelStrategy(
        devices=[f"CPU:{index}" for index in range(replicas)], synchronization=made(name)
    )
    return train(
        datasets.load("digits"),
        strategy=strategy,
        epochs=epochs,
        batch_size=_BATCH,
        seed=seed,
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: rate)],
    )


def _steps() -> int:
    from tutorials import datasets
    from tutorials.demo import steps_per_epoch

    return steps_per_epoch(datasets.load("digits"), _BATCH)


def _bytes_of_weights() -> int:
    from tutorials import datasets
    from tutorials.demo import build_model

    model = build_model(datasets.load("digits").train_images.shape[1:])
    return sum(4 * variable.value.shape.num_elements() for variable in model.trainable_variables)
