"""The benchmark of optimizers: the cost of an update, for tfdp's optimizers beside Keras'."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.ratios import ratio, spread

REFERENCE = "keras Adam"

_UPDATES = 2  # timed together
_WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class OptimizersOptions:
    """The choices of one table."""

    rounds: int = option(30, "timings of each (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_optimizers(commands: argparse._SubParsersAction) -> None:
    """Adds `optimizers` to the benchmarks."""
    add_command(
        commands,
        "optimizers",
        OptimizersOptions,
        _run,
        help="what an update costs, beside Keras' optimizers",
        description="Times the update of 12.6 million weights by LARS and LAMB and by Keras' "
        "optimizers, in turn.",
    )


def _run(options: OptimizersOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options.rounds)


def run(rounds: int, console: Console | None = None) -> int:
    """Times the update alone, without a model's passes, and prints the table.

    The variables are those of the MLP of `benchmarks fit`: 12.6 million numbers in 8 variables of
    float32. The optimizers take turns in one process.

    Cost: 3 GB of memory traffic and some 0.5 s a round on two cores.

    Args:
      rounds: How often each optimizer is timed.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    console = console or Console()
    seconds = measure(rounds)
    table = Table(title="One update of 12.6 million weights on CPU:0")
    for column in ("optimizer", "ms", "range", f"of {REFERENCE}'s", "pairs"):
        table.add_column(column, justify="left" if column == "optimizer" else "right")
    for name, times in seconds.items():
        middle, against = spread([1e3 * t for t in times]), ratio(times, seconds[REFERENCE])
        assert against is not None
        table.add_row(
            name,
            f"{middle.median:.1f}",
            f"{middle.minimum:.1f}-{middle.maximum:.1f}",
            f"{against.of_medians:.2f}",
            f"{against.median_of_pairs:.2f}",
        )
    console.print(table)
    return 0


def measure(rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of an update in each round, by the optimizer's name."""
    updates = {name: _update(make()) for name, make in _optimizers().items()}
    for update in updates.values():
        for _ in range(_WARM_UP):
            update()
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(rounds):
        for name, update in updates.items():
            began = time.perf_counter()
            for _ in range(_UPDATES):
                update()
            seconds[name].append((time.perf_counter() - began) / _UPDATES)
    return seconds


def _optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    import tfdp

    return {
        REFERENCE: lambda: keras.optimizers.Adam(1e-4),
        "keras AdamW": lambda: keras.optimizers.AdamW(1e-4),
        "keras Lamb": lambda: keras.optimizers.Lamb(1e-4),
        "tfdp LAMB": lambda: tfdp.optimizers.LAMB(1e-4),
        "keras SGD, momentum": lambda: keras.optimizers.SGD(1e-4, momentum=0.9),
        "tfdp LARS": lambda: tfdp.optimizers.LARS(1e-4),
    }


def _update(optimizer: Any) -> Callable[[], None]:
    """Returns a compiled update with given gradients, which returns when it is done."""
    import keras
    import tensorflow as tf

    from tfdp.tools.bench.bench_models import build_model

    keras.utils.set_random_seed(0)
    variables = build_model("mlp").trainable_variables
    optimizer.build(variables)
    gradients = [tf.random.normal(variable.shape, stddev=0.01) for variable in variables]

    @tf.function
    def update() -> tf.Tensor:
        optimizer.apply(gradients, variables)
        return tf.identity(optimizer.iterations)

    return lambda: update().numpy()
