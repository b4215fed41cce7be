"""The benchmark of batch normalization: what the whole batch's statistics cost a step."""

import argparse
import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.bench_devices import split_cpu
from tfdp.tools.bench.ratios import ratio, spread

_EXAMPLES_PER_REPLICA = 16
_MODELS = ("mobilenet", "resnet18")
_SIDES = ("whole_batch", "per_replica")


@dataclasses.dataclass(frozen=True)
class NormalizationOptions:
    """The choices of one table."""

    model: str = option("all", "what to train (%(default)s)", choices=(*_MODELS, "all"))
    rounds: int = option(12, "fits a side (%(default)s)", at_least=1)
    steps: int = option(8, "of each fit (%(default)s)", at_least=2)
    replicas: int = option(2, "logical CPU devices, in one process (%(default)s)", at_least=2)

    def __post_init__(self) -> None:
        check(self)


def add_normalization(commands: argparse._SubParsersAction) -> None:
    """Adds `normalization` to the benchmarks."""
    add_command(
        commands,
        "normalization",
        NormalizationOptions,
        _run,
        help="what the whole batch's statistics of batch normalization cost a step",
        description="Times model.fit with both values of `batch_normalization` in turn, in one "
        "process, or under `tfdp run` in the processes that it starts, of which the first prints.",
    )


def _run(options: NormalizationOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: NormalizationOptions, console: Console | None = None) -> int:
    """Trains equal models in turn, one with each statistics, and prints a table.

    Cost: two traces of each model, then `2 * rounds * steps` steps: six minutes on two cores.

    Args:
      options: The options that say what to measure.
      console: The console to print to; by default standard output.

    Returns:
      The exit code, 0.
    """
    from tfdp import cluster

    place = cluster.detect()
    if place.world_size == 1:
        split_cpu(options.replicas)
    count = options.replicas if place.world_size == 1 else place.world_size
    table = Table(
        title=f"A step on {count} replicas in {place.world_size} processes, of "
        f"{_EXAMPLES_PER_REPLICA} examples each",
        caption="coll: collectives of a step; ratio: whole_batch / per_replica of the medians; "
        "pairs: the median of the rounds' ratios, and in brackets their middle half",
    )
    for column in ("model", *(f"{side}, ms" for side in _SIDES), "coll", "ratio", "pairs"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in _MODELS if options.model == "all" else (options.model,):
        seconds, collectives = measure(name, options, place.world_size)
        table.add_row(name, *_cells(seconds, collectives))
    if place.rank == 0:
        (console or Console()).print(table)
    return 0


def _cells(seconds: dict[str, list[float]], collectives: dict[str, int]) -> list[str]:
    both = [seconds[side] for side in _SIDES]
    against = ratio(*both)
    assert against is not None
    pairs = sorted(whole / own for whole, own in zip(*both, strict=True))
    quarter = len(pairs) // 4
    return [
        *(f"{1e3 * spread(times).median:.0f}" for times in both),
        ", ".join(str(collectives[side]) for side in _SIDES),
        f"{against.of_medians:.2f}",
        f"{against.median_of_pairs:.2f} ({pairs[quarter]:.2f}-{pairs[-1 - quarter]:.2f})",
    ]


def measure(
    name: str, options: NormalizationOptions, processes: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Returns of each side the seconds of a step, a round's median, and a step's collectives."""
    import keras

    import tfdp
    from tfdp.tools.bench.bench_models import build_model, random_batch
    from tfdp.tools.bench.fit_worker import StepTimes

    devices = [f"CPU:{i}" for i in range(options.replicas)] if processes == 1 else None
    made: dict[str, tuple[Any, Any]] = {}
    for side in _SIDES:
        strategy = tfdp.DataParallelStrategy(devices, batch_normalization=side)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            made[side] = strategy, build_model(name)
    batch = _EXAMPLES_PER_REPLICA * (options.replicas if processes == 1 else processes)
    data = random_batch(name, batch * options.steps)
    seconds: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(options.rounds + 1):  # the first traces
        for side in _SIDES if number % 2 else reversed(_SIDES):
            times = StepTimes()
            _, model = made[side]
            model.fit(*data, batch_size=batch, shuffle=False, verbose=0, callbacks=[times])
            if number:
                of_steps = [end - begin for begin, end in times.steps[1:]]
                seconds[side].append(spread(of_steps).median)
    counts = {
        side: len(strategy.explain(model).collectives) for side, (strategy, model) in made.items()
    }
    return seconds, counts
