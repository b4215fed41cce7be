"""The benchmark of what a compiled step costs, beside that of Keras on JAX."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping

from benchmarks.costs_worker import MODELS, SIDES
from tfdp.base.command_line import add_command, check, option, require
from tfdp.tools.bench.child_process import ChildFailure, run_module

#: What is counted: `tfdp.strategy.xla.compile_facts.CompileFacts` says what each is.
COUNTED = ("operations", "bytes_accessed")

#: A step under XLAStrategy counts at most so many times as much.
BOUND = 1.01


@dataclasses.dataclass(frozen=True)
class CostsOptions:
    """What is compiled."""

    models: tuple[str, ...] = option(MODELS, "%(default)s", choices=MODELS)
    examples: int = option(16, "of a batch (%(default)s)", at_least=1)
    timeout_seconds: float = option(1800.0, "of each process (%(default)s)", above=0)

    def __post_init__(self) -> None:
        check(self)


def add_costs(commands: argparse._SubParsersAction) -> None:
    """Adds `costs` to the benchmarks."""
    add_command(
        commands,
        "costs",
        CostsOptions,
        _costs,
        help="operations and bytes of a compiled step, beside those of Keras on JAX",
        description="Has XLA compile a step of model.fit for one CPU device, under XLAStrategy and "
        "of Keras on JAX, each in a process of its own, and prints the operations that it counts "
        "and the bytes that they read and write. Nothing runs.",
        epilog=f"Exit code 0 if no figure is more than {BOUND} times that of Keras on JAX; else 1.",
    )


def _costs(options: CostsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "jax"], parser)
    return run(options)


def run(options: CostsOptions) -> int:
    """Compiles each step on both sides, and prints a table.

    Returns:
      The exit code: 0; 1 where a process failed, or a figure is above `BOUND`.
    """
    print(
        "| step of | operations (10^6) | Keras on JAX | ratio "
        "| bytes accessed (10^6) | Keras on JAX | ratio |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    well = True
    for name in options.models:
        try:
            found = measured(name, options.examples, options.timeout_seconds)
        except ChildProcessError as error:
            well = False
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        print(row(name, found), flush=True)
        well = well and max(ratios(found).values()) <= BOUND
    return 0 if well else 1


def measured(name: str, examples: int, timeout_seconds: float) -> dict[str, dict[str, float]]:
    """Returns for each side what XLA counts of a step: `COUNTED`.

    Args:
      name: One of `MODELS`.
      examples: Of a batch.
      timeout_seconds: Of each process.

    Raises:
      ChildProcessError: A process failed.
    """
    found = {}
    for side in SIDES:
        arguments = [side, name, str(examples)]
        ended = run_module("benchmarks.costs_worker", arguments, timeout_seconds)
        if isinstance(ended, ChildFailure):
            raise ChildProcessError(str(ended))
        found[side] = json.loads(ended.stdout.splitlines()[-1])
    return found


def ratios(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns how many times as much as Keras on JAX a step counts, by what is counted."""
    own, other = (found[side] for side in SIDES)
    return {what: own[what] / other[what] for what in COUNTED}


def row(name: str, found: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a row of the table.

    >>> own, other = {"operations": 3e6, "bytes_accessed": 2e6}, {"operations": 4e6}
    >>> row("lstm-adam", {"tfdp": own, "keras_on_jax": {**other, "bytes_accessed": 2e6}})
    '| lstm, Adam | 3.00 | 4.00 | 0.750 | 2.00 | 2.00 | 1.000 |'
    """
    cells = [name.replace("-adam", ", Adam")]
    for what, ratio in ratios(found).items():
        cells += [*(f"{found[side][what] / 1e6:.2f}" for side in SIDES), f"{ratio:.3f}"]
    return f"| {' | '.join(cells)} |"
