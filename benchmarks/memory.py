"""The benchmark of `shard`: what each rank keeps, and what a step costs."""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.bench_models import MODELS
from tfdp.tools.bench.child_process import ChildFailure, run_module
from tfdp.tools.prediction.memory import SHARDS

#: What is kept: see `benchmarks.memory_worker`.
STATES = ("Adam", "Adam with an average", "Adam in windows")

# With these the allocators give back at once what is set free. Steps take longer so.
_GIVE_BACK = ("TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1", "MALLOC_MMAP_THRESHOLD_=65536")


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    """The choices of one table."""

    processes: int = option(2, "ranks, each of one CPU device (%(default)s)", at_least=2)
    rounds: int = option(3, "runs of each row that are timed, in turn (%(default)s)", at_least=1)
    steps: int = option(10, "timed steps of each (%(default)s)", at_least=1)
    batch: int = option(16, "examples of each rank (%(default)s)", at_least=1)
    model: str = option("mlp", "mlp has 12.6 M parameters (%(default)s)", choices=MODELS)
    state: str = option("Adam", "what is kept for the parameters (%(default)s)", choices=STATES)

    def __post_init__(self) -> None:
        check(self)


def add_memory(commands: argparse._SubParsersAction) -> None:
    """Adds `memory` to the benchmarks."""
    add_command(
        commands,
        "memory",
        MemoryOptions,
        _run,
        help="what each rank keeps with and without `shard`, and a step's time",
        description="Starts the ranks of a cluster on this host for each way to shard, in turn. "
        "The memory is that by which a process shrinks when what it keeps is emptied.",
    )


def _run(options: MemoryOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: MemoryOptions, console: Console | None = None) -> int:
    """Measures each way to shard, and prints a table.

    Returns:
      The exit code: 0; 1 if a process failed.
    """
    kept: dict[str, list[dict[str, Any]]] = {shard: [] for shard in SHARDS}
    timed: dict[str, list[dict[str, Any]]] = {shard: [] for shard in SHARDS}
    for found, environment in [(kept, _GIVE_BACK), *[(timed, ())] * options.rounds]:
        for shard in SHARDS:
            measured = _measured(options, shard, environment)
            if isinstance(measured, ChildFailure):
                print(measured, file=sys.stderr)
                return 1
            found[shard] += measured
    (console or Console()).print(_table(options, kept, timed))
    return 0


def _measured(
    options: MemoryOptions, shard: str, environment: Sequence[str]
) -> list[dict[str, Any]] | ChildFailure:
    """Returns what each rank measured."""
    words = ["--shard", shard, "--model", options.model, "--state", options.state]
    words += ["--batch", str(options.batch), "--steps", str(options.steps)]
    worker = ["env", *environment, sys.executable, "-m", "benchmarks.memory_worker", *words]
    child = run_module("tfdp", ["run", "-n", str(options.processes), "--", *worker], 600)
    if isinstance(child, ChildFailure):
        return child
    lines = [line.partition("MEASURED ")[2] for line in child.stdout.splitlines()]
    return [json.loads(line) for line in lines if line]


def _table(
    options: MemoryOptions,
    kept: dict[str, list[dict[str, Any]]],
    timed: dict[str, list[dict[str, Any]]],
) -> Table:
    table = Table(
        padding=0,
        title=f"{options.state}, {options.model} of {kept['none'][0]['parameters_mb']:.0f} MB, "
        f"{options.processes} processes; MB",
        caption="state: what the optimizer keeps, on the fullest rank; model: weights; a step: by "
        "how much rank 0's process grew at most in one, by gradients and activations; all: of "
        "these together; beside: what else it grew by when the optimizer was built; file: by how "
        "much while a checkpoint was written; ms: a step",
    )
    columns = ("state", "of none", "model", "a step", "all", "of none", "beside", "file")
    for column in ("shard", *columns, "ms", "of none"):
        is_name = column == "shard"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    most = {shard: max(rank["state_mb"] for rank in ranks) for shard, ranks in kept.items()}
    step = {
        shard: statistics.median(rank["step_ms"] for rank in ranks)
        for shard, ranks in timed.items()
    }
    # Others lose during a checkpoint what they had received.
    first = {
        shard: next(rank for rank in ranks if rank["rank"] == 0) for shard, ranks in kept.items()
    }
    together = {
        shard: most[shard] + rank["weights_mb"] + rank["step_mb"] for shard, rank in first.items()
    }
    for shard, rank in first.items():
        table.add_row(
            shard,
            f"{most[shard]:.0f}",
            f"{most[shard] / most['none']:.2f}",
            f"{rank['weights_mb']:.0f}",
            f"{rank['step_mb']:.0f}",
            f"{together[shard]:.0f}",
            f"{together[shard] / together['none']:.2f}",
            f"{rank['built_mb'] - rank['state_mb']:.0f}",
            f"{rank['checkpoint_mb']:.0f}",
            f"{step[shard]:.1f}",
            f"{step[shard] / step['none']:.2f}",
        )
    return table
