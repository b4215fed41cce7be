"""The benchmark of partitioners: what tfdp's own and XLA's make of the same programs."""

import argparse
import dataclasses
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tfdp.base.command_line import add_command, check, option, require, set_environment

# The largest difference that counts as equal: beyond it a program does not round otherwise.
BOUND = 1e-4

_REPLICAS, _DEVICES = 2, 4
_SIDES = (f"tfdp {_REPLICAS}", f"xla {_DEVICES}", "both")
_SHOWN_CHARACTERS = 220


@dataclasses.dataclass(frozen=True)
class PartitionersOptions:
    """The choices of one table."""

    results: str = option(
        "build/partitioners.jsonl", "file of what was measured; what is in it is not run again"
    )

    def __post_init__(self) -> None:
        check(self)


def add_partitioners(commands: argparse._SubParsersAction) -> None:
    """Adds `partitioners` to the benchmarks."""
    add_command(
        commands,
        "partitioners",
        PartitionersOptions,
        _partitioners,
        help="what programs make under DataParallelStrategy and under XLAStrategy",
        description="Trains the programs of `equivalence` and of tests/foreign on one device, on "
        f"{_REPLICAS} replicas by tfdp.partition and on {_DEVICES} devices by XLA's partitioner, "
        "and prints how far they part.",
    )


def _partitioners(options: PartitionersOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow", "jax"], parser)
    set_environment()
    return run(pathlib.Path(options.results))


def run(results: pathlib.Path, console: Console | None = None) -> int:
    """Runs each program that was not measured yet, and prints the table in Markdown.

    Cost: a process that trains a hundred programs, each on three sides: half an hour on two cores.

    Args:
      results: A file of JSON lines, which is added to.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where one side differs from one device by more than :data:`BOUND`, or
      the process failed.
    """
    from benchmarks.partitioners_programs import programs, tolerance

    console = console or Console()
    results.parent.mkdir(parents=True, exist_ok=True)
    names = list(programs())
    found = {each["program"]: each for each in _finished(results)}
    missing = [name for name in names if name not in found]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Training", total=len(missing))
        for each in _measured(missing):
            with results.open("a") as file:
                print(json.dumps(each), file=file)
            found[each["program"]] = each
            progress.advance(task)
    for line in table([found[name] for name in names if name in found]):
        console.print(line, markup=False, soft_wrap=True)
    differ = [
        name
        for name in names
        if name in found and _differs(found[name], max(BOUND, tolerance(name)))
    ]
    lost = [name for name in names if name not in found]
    for name in lost:
        console.print(f"Not measured: {name}.", style="red", markup=False, soft_wrap=True)
    return 1 if differ or lost else 0


def _finished(results: pathlib.Path) -> list[dict[str, Any]]:
    lines = results.read_text().splitlines() if results.exists() else []
    return [json.loads(line) for line in lines]


def _measured(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields what a process measures of each program; after the first that kills it no more."""
    if not names:
        return
    command = [sys.executable, "-m", "benchmarks.partitioners_worker", "--programs", *names]
    command += ["--tfdp", str(_REPLICAS), "--xla", str(_DEVICES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):  # programs print as they like
                yield json.loads(line)


def table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of a table in Markdown, and below it what was refused and why.

    Args:
      found: What `partitioners_worker.measure` returned of each program, with its name.
    """
    yield f"| program | tfdp.partition, {_REPLICAS} | XLA, {_DEVICES} | from each other |"
    yield "|---|---|---|---|"
    reasons: dict[str, list[str]] = {}
    for each in found:
        cells = [_shown(each.get(side)) for side in _SIDES]
        mark = " (compiled)" if "compiled" in each else " (XLA: its own)" * ("own" in each)
        yield f"| {each['program']}{mark} | {' | '.join(cells)} |"
        refused = each[_SIDES[1]]
        if "error" in refused:
            said = " ".join(refused["says"].split())
            said = said.rpartition(f"{refused['error']}: ")[2]  # behind the lines of a user's code
            reasons.setdefault(f"{refused['error']}: {said}", []).append(each["program"])
    yield ""
    for reason, names in reasons.items():
        shown = reason if len(reason) <= _SHOWN_CHARACTERS else f"{reason[:_SHOWN_CHARACTERS]}..."
        yield f"- {', '.join(names)}: {shown}"


def _shown(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    if "error" in result:
        return str(result["error"])
    return f"{largest(result):.1e}"


def largest(result: dict[str, Any]) -> float:
    """Returns the larger of a comparison's differences: of values, and of weights' changes."""
    if "error" in result or result["unlike"]:
        return math.inf
    return max(result["values"], result["changes"])


def _differs(found: dict[str, Any], bound: float) -> bool:
    by_tfdp, by_xla = (found.get(side, {}) for side in _SIDES[:2])
    is_refused = by_xla.get("error") in ("PartitionError", "TypeError")
    xla_differs = not is_refused and not largest(by_xla) <= bound
    return xla_differs or not largest(by_tfdp) <= bound
