"""The benchmark of checkpoints: what one of them costs among many steps."""

import argparse
import dataclasses
import os

from rich.console import Console
from rich.table import Table

from tfdp.base.atomic_files import temporary_folder
from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.bench_devices import split_cpu
from tfdp.tools.bench.bench_models import MODELS
from tfdp.tools.bench.ratios import ratio, spread

_EXAMPLES_PER_REPLICA = 16
_SIDES = ("with", "without")


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """The choices of one table."""

    rounds: int = option(5, "fits a side (%(default)s)", at_least=1)
    steps: int = option(101, "of each fit (%(default)s)", at_least=4)
    replicas: int = option(2, "logical CPU devices (%(default)s)", at_least=1)
    model: str = option("mlp", "mlp has 12.6 M parameters (%(default)s)", choices=MODELS)

    def __post_init__(self) -> None:
        check(self)


def add_checkpoint(commands: argparse._SubParsersAction) -> None:
    """Adds `checkpoint` to the benchmarks."""
    add_command(
        commands,
        "checkpoint",
        CheckpointOptions,
        _run,
        help="what one tfdp.callbacks.Checkpoint costs among the steps of a fit",
        description="Times model.fit with one checkpoint in the middle of its steps and without "
        "any, in turn, in one process. The first step, and what follows the last, are not timed.",
    )


def _run(options: CheckpointOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: CheckpointOptions, console: Console | None = None) -> int:
    """Trains two equal models in turn, one with a checkpoint and one without; prints a table.

    Returns:
      The exit code, 0.
    """
    split_cpu(options.replicas)
    seconds, megabytes = measure(options)
    against = ratio(seconds["with"], seconds["without"])
    assert against is not None
    steps, replicas = options.steps - 1, options.replicas
    table = Table(title=f"A step on {replicas} replicas, one checkpoint in {steps} of them")
    for column in ("model", "checkpoint", *(f"{side}, ms" for side in _SIDES), "ratio", "pairs"):
        table.add_column(column, justify="left" if column == "model" else "right")
    medians = (f"{1e3 * spread(seconds[side]).median:.2f}" for side in _SIDES)
    ratios = f"{against.of_medians:.3f}", f"{against.median_of_pairs:.3f}"
    table.add_row(options.model, f"{megabytes:.0f} MB", *medians, *ratios)
    (console or Console()).print(table)
    return 0


def measure(options: CheckpointOptions) -> tuple[dict[str, list[float]], float]:
    """Returns the seconds of a step, as the mean of each round, by side; and a checkpoint's MB."""
    import keras

    import tfdp
    from tfdp.tools.bench.bench_models import build_model, random_batch
    from tfdp.tools.bench.fit_worker import StepTimes

    strategy = tfdp.DataParallelStrategy(devices=[f"CPU:{i}" for i in range(options.replicas)])
    models = {}
    for side in _SIDES:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            models[side] = build_model(options.model)
            models[side].optimizer.build(models[side].trainable_variables)
    batch = _EXAMPLES_PER_REPLICA * options.replicas
    data = random_batch(options.model, batch * options.steps)
    seconds: dict[str, list[float]] = {side: [] for side in _SIDES}
    megabytes = 0.0
    for number in range(options.rounds + 1):  # the first traces
        for side in _SIDES if number % 2 else reversed(_SIDES):
            with temporary_folder() as folder:
                times = StepTimes()
                # One in the middle. Another follows the last step, which is timed by then.
                kept = tfdp.callbacks.Checkpoint(folder, every_steps=options.steps // 2 + 1)
                models[side].fit(
                    tfdp.data.pipeline(data, batch, seed=1, shuffle=False),
                    verbose=0,
                    callbacks=[kept, times] if side == "with" else [times],
                )
                if side == "with":
                    sizes = [os.path.getsize(entry) for entry in os.scandir(folder)]
                    megabytes = max(sizes) / 1e6
                if number:
                    elapsed = times.steps[-1][1] - times.steps[0][1]
                    seconds[side].append(elapsed / (options.steps - 1))
    return seconds, megabytes
