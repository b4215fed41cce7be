"""The benchmark of telemetry: what recording costs a step."""

import argparse
import dataclasses
import pathlib

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
class TelemetryOptions:
    """The choices of one table."""

    rounds: int = option(15, "fits a side (%(default)s)", at_least=1)
    steps: int = option(41, "of each fit (%(default)s)", at_least=2)
    replicas: int = option(2, "logical CPU devices (%(default)s)", at_least=1)

    def __post_init__(self) -> None:
        check(self)


def add_telemetry(commands: argparse._SubParsersAction) -> None:
    """Adds `telemetry` to the benchmarks."""
    add_command(
        commands,
        "telemetry",
        TelemetryOptions,
        _run,
        help="what tfdp.callbacks.Telemetry costs a step",
        description="Times model.fit with Telemetry and without it, in turn, in one process.",
    )


def _run(options: TelemetryOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options.rounds, options.steps, options.replicas)


def run(rounds: int, steps: int, replicas: int, console: Console | None = None) -> int:
    """Trains two equal models in turn, one with `Telemetry` and one without; prints a table.

    Cost: two traces of each model, then `2 * rounds * steps` steps: two minutes on two cores.

    Args:
      rounds: How many calls of `fit` each side has.
      steps: The steps of each call; the first, which makes the iterator, is not timed.
      replicas: The number of logical CPU devices.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    console = console or Console()
    split_cpu(replicas)
    table = Table(title=f"A step on {replicas} replicas, mean of {steps - 1} a round")
    for column in ("model", *(f"{side}, ms" for side in _SIDES), "ratio", "pairs"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in MODELS:
        seconds = measure(name, rounds, steps, replicas)
        against = ratio(seconds["with"], seconds["without"])
        assert against is not None
        medians = (f"{1e3 * spread(seconds[side]).median:.2f}" for side in _SIDES)
        table.add_row(name, *medians, f"{against.of_medians:.3f}", f"{against.median_of_pairs:.3f}")
    console.print(table)
    return 0


def measure(name: str, rounds: int, steps: int, replicas: int) -> dict[str, list[float]]:
    """Returns the seconds of a step, as the mean of each round, with telemetry and without."""
    import keras

    import tfdp
    from tfdp.tools.bench.bench_models import build_model, random_batch
    from tfdp.tools.bench.fit_worker import StepTimes

    strategy = tfdp.DataParallelStrategy(devices=[f"CPU:{i}" for i in range(replicas)])
    models = {}
    for side in _SIDES:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            models[side] = build_model(name)
    batch = _EXAMPLES_PER_REPLICA * replicas
    data = random_batch(name, batch * steps)
    seconds: dict[str, list[float]] = {side: [] for side in _SIDES}
    with temporary_folder() as folder:
        for number in range(rounds + 1):  # the first traces
            for side in _SIDES if number % 2 else reversed(_SIDES):
                model = models[side]
                times = StepTimes()
                telemetry = tfdp.callbacks.Telemetry(pathlib.Path(folder))
                callbacks = [telemetry, times] if side == "with" else [times]
                model.fit(*data, batch_size=batch, shuffle=False, verbose=0, callbacks=callbacks)
                if number:
                    elapsed = times.steps[-1][1] - times.steps[0][1]
                    seconds[side].append(elapsed / (steps - 1))
    return seconds
