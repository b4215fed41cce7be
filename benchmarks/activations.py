"""The benchmark of activations: the memory of a training whose activations are kept, or not.

They are computed again in the backward pass (rematerialization), or those of a micro-batch are
there at a time (accumulation).
"""

import argparse
import dataclasses
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.child_process import ChildFailure, run_for_json

#: By the name of a model its blocks, the examples of a step, and a word on both.
MODELS = {
    "dense": "24 blocks of 4 dense layers of 256 units, 4,096 examples",
    "transformer": "12 blocks of 128 units and 4 heads, 32 examples of 256 tokens",
    "small": "2 blocks of 4 dense layers of 64 units, 64 examples",
}

#: By the name of a row, what is done: blocks that are computed again, micro-batches of a step.
WAYS = {
    "all kept": (False, 1),
    "blocks computed again": (True, 1),
    "8 micro-batches": (False, 8),
    "both": (True, 8),
}


@dataclasses.dataclass(frozen=True)
class ActivationsOptions:
    """The choices of the table."""

    rounds: int = option(3, "measurements of each row, in turn (%(default)s)", at_least=1)
    steps: int = option(5, "timed steps of each (%(default)s)", at_least=1)
    models: tuple[str, ...] = option(
        ("dense", "transformer"),
        "with commas between (dense, transformer)",
        choices=tuple(MODELS),
        metavar="NAMES",
    )

    def __post_init__(self) -> None:
        check(self)


def add_activations(commands: argparse._SubParsersAction) -> None:
    """Adds `activations` to the benchmarks."""
    add_command(
        commands,
        "activations",
        ActivationsOptions,
        _run,
        help="the memory and the step of a training that computes activations again",
        description="Trains on two replicas, in a process of its own for each row. The memory is "
        "that by which a step makes the process grow; a step is one update.",
    )


def _run(options: ActivationsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: ActivationsOptions, console: Console | None = None) -> int:
    """Measures each way of each model, and prints a table.

    Returns:
      The exit code: 0; 1 if a process failed.
    """
    table = Table()
    for column in ("model", "activations", "memory, MB", "of all", "step, ms", "of all"):
        left = column in ("model", "activations")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for model in options.models:
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                measured = _measured(_words(options, model, way))
                if isinstance(measured, ChildFailure):
                    print(measured, file=sys.stderr)
                    return 1
                found[way].append(measured)
        _add_rows(table, model, found)
    (console or Console()).print(table)
    return 0


def _measured(words: list[str]) -> dict[str, Any] | ChildFailure:
    """Returns the memory of one run, and the time of a step of another, which is not slowed."""
    worker = "benchmarks.activations_worker"
    memory = run_for_json(worker, [*words, "--returns"], 900)
    time = memory if isinstance(memory, ChildFailure) else run_for_json(worker, words, 900)
    if isinstance(memory, ChildFailure) or isinstance(time, ChildFailure):
        return time
    return {"memory_mb": memory["memory_mb"], "step_ms": time["step_ms"]}


def _words(options: ActivationsOptions, model: str, way: str) -> list[str]:
    again, micro_batches = WAYS[way]
    words = ["--model", model, "--micro-batches", str(micro_batches)]
    return [*words, "--steps", str(options.steps), *(["--again"] if again else [])]


def _add_rows(table: Table, model: str, found: dict[str, list[dict[str, Any]]]) -> None:
    medians = {
        way: {
            name: statistics.median(one[name] for one in each) for name in ("memory_mb", "step_ms")
        }
        for way, each in found.items()
    }
    whole = medians["all kept"]
    for way, own in medians.items():
        table.add_row(
            MODELS[model] if own is whole else "",
            way,
            f"{own['memory_mb']:.0f}",
            f"{own['memory_mb'] / whole['memory_mb']:.2f}",
            f"{own['step_ms']:.0f}",
            f"{own['step_ms'] / whole['step_ms']:.2f}",
        )
