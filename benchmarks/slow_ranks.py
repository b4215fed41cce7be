"""The benchmark of slow ranks: what a training gains that does not wait for all of them."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.tools.bench.child_process import ChildFailure, failure, run_module

ALONE = "alone"

# What is measured; the first are ranks that do not know of each other. A round is short beside the
# pauses, and the bound is what a rank at half the speed falls behind in the training.
SYNCHRONIZATIONS = (ALONE, "", "LocalSGD(16)", "Asynchronous(16, staleness=1000)")


@dataclasses.dataclass(frozen=True)
class SlowRanksOptions:
    """The ranks and their steps."""

    ranks: int = option(4, "number of ranks (%(default)s)", at_least=2)
    steps: int = option(100, "steps of the training (%(default)s)", at_least=1)
    step_ms: float = option(100.0, "time of a step, which a rank sleeps (%(default)s)", above=0)
    pause_seconds: float = option(2.0, "how long a rank stops (%(default)s)", above=0)
    pause_every: int = option(
        40, "steps of that rank from pause to pause (%(default)s)", at_least=2
    )
    timeout_seconds: float = option(600.0, "limit of each run (%(default)s)", above=0)

    def __post_init__(self) -> None:
        check(self)

    @property
    def kinds(self) -> dict[str, tuple[list[float], list[int]]]:
        """By its name what is slow: of each rank the seconds of a step, and the pauses' steps."""
        seconds = [self.step_ms / 1000] * self.ranks
        never = [0] * self.ranks
        return {
            "one rank at half the speed": ([*seconds[1:], 2 * seconds[0]], never),
            f"one rank stops for {self.pause_seconds:g} s now and then": (
                seconds,
                [*never[1:], self.pause_every],
            ),
        }


def add_slow_ranks(commands: argparse._SubParsersAction) -> None:
    """Adds `slow-ranks` to the benchmarks."""
    add_command(
        commands,
        "slow-ranks",
        SlowRanksOptions,
        _slow_ranks,
        help="what a training gains that does not wait for slow ranks",
        description="Trains on ranks of which one is slow, or stops now and then, and prints how "
        "many examples a second each synchronization trains on, beside the sum of what the ranks "
        "do alone. A rank computes next to nothing, and sleeps: so the ranks share no cores.",
    )


def _slow_ranks(options: SlowRanksOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: SlowRanksOptions, console: Console | None = None) -> int:
    """Measures each synchronization with each kind of slow ranks, and prints a table.

    Args:
      options: The ranks and their steps.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where a run failed.
    """
    console = console or Console()
    table = Table(
        title=f"{options.ranks} ranks, {options.step_ms:g} ms a step",
        caption="examples a second of all ranks (over the sum of what each does alone)",
    )
    table.add_column("")
    for kind in options.kinds:
        table.add_column(kind, justify="right")
    rates: dict[tuple[str, str], float] = {}
    failed = False
    for synchronization in SYNCHRONIZATIONS:
        for kind, (seconds, pauses) in options.kinds.items():
            with console.status(f"{kind}: {named_row(synchronization)}"):
                found = _measure(synchronization, seconds, pauses, options)
            if isinstance(found, ChildFailure):
                failed = True
                console.print(str(found), style="red", markup=False, soft_wrap=True)
            else:
                rates[synchronization, kind] = rate(found, synchronization == ALONE)
                cell = _cell(rates, synchronization, kind)
                console.print(f"{kind}, {named_row(synchronization)}: {cell}", markup=False)
        table.add_row(
            named_row(synchronization),
            *(_cell(rates, synchronization, kind) for kind in options.kinds),
        )
    console.print(table)
    return 1 if failed else 0


def named_row(synchronization: str) -> str:
    """Returns what a row of the table is called."""
    return "each alone" if synchronization == ALONE else synchronization or "whole gradients"


def rate(results: Sequence[dict], alone: bool) -> float:
    """Returns the examples a second of all ranks.

    Args:
      results: What `benchmarks.slow_ranks_worker` has measured, of each rank.
      alone: Whether the ranks do not know of each other; else the last ends the training.

    >>> results = [{"examples": 30, "seconds": 2.0}, {"examples": 10, "seconds": 1.0}]
    >>> rate(results, alone=True), rate(results, alone=False)
    (25.0, 20.0)
    """
    if alone:
        return sum(each["examples"] / each["seconds"] for each in results)
    return sum(each["examples"] for each in results) / max(each["seconds"] for each in results)


def _measure(
    synchronization: str, seconds: list[float], pauses: list[int], options: SlowRanksOptions
) -> list[dict] | ChildFailure:
    worker = [sys.executable, "-m", "benchmarks.slow_ranks_worker"]
    worker += ["--synchronization", synchronization, "--steps", str(options.steps)]
    worker += ["--seconds", json.dumps(seconds), "--pause-every", json.dumps(pauses)]
    worker += ["--pause-seconds", str(options.pause_seconds)]
    words = ["run", "-n", str(options.ranks), "--", *worker]
    child = run_module("tfdp.tools.cli", words, options.timeout_seconds)
    if isinstance(child, ChildFailure):
        return child
    lines = [line.partition("] ")[2] for line in child.stdout.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if len(found) != options.ranks:
        return failure("tfdp.tools.cli", words, f"printed {len(found)} results", child.stderr)
    return found


def _cell(rates: dict[tuple[str, str], float], synchronization: str, kind: str) -> str:
    own, most = rates.get((synchronization, kind)), rates.get((ALONE, kind))
    if own is None or most is None:
        return "failed"
    return f"{own:.0f} ({own / most:.2f})"
