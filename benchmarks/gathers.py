"""The benchmark of gathers: what programs send beyond their gradients, and what asks for it."""

import argparse
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import Progress

from tfdp.base import words
from tfdp.base.command_line import add_command, check, option, require, set_environment

# Examples in each batch whose length the programs leave open.
LENGTH = 32

REPLICAS = 2


@dataclasses.dataclass(frozen=True)
class GathersOptions:
    """The choices of one table."""

    programs: tuple[str, ...] = option((), "programs by their names; by default all")
    rows: int = option(25, "rows of the table")

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What one collective of a program sends beyond gradients.

    Attributes:
      program: The program's name.
      kind: "sum", "gather" or "from first".
      why: The operation that asked for it, and what it needs it for.
      size_bytes: The bytes of the whole tensors, for batches of :data:`LENGTH` examples; None where
        only the step knows them.
      in_rounds: Whether it is sent in each round of a loop.
    """

    program: str
    kind: str
    why: str
    size_bytes: int | None
    in_rounds: bool


def add_gathers(commands: argparse._SubParsersAction) -> None:
    """Adds `gathers` to the benchmarks."""
    add_command(
        commands,
        "gathers",
        GathersOptions,
        _gathers,
        help="what programs send beyond their gradients, and what asks for it",
        description="Runs the programs of `equivalence`, of tests/foreign, tests/partition and "
        f"tests/strategy/xla on {REPLICAS} replicas and prints what they gather and sum besides "
        "gradients, "
        f"by what asked for it, the largest first, for batches of {LENGTH} examples.",
    )


def _gathers(options: GathersOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def run(options: GathersOptions, console: Console | None = None) -> int:
    """Runs the programs, and prints the table in Markdown.

    Cost: a process that trains three hundred small programs: some twenty minutes on two cores.

    Args:
      options: Which programs, and how many rows.
      console: The console to print to; by default standard output.

    Returns:
      The exit code: 0, or 1 where a program failed.
    """
    from benchmarks.gathers_programs import programs, sent_by

    console = console or Console()
    every, found, failed = programs(), [], {}
    names = options.programs or tuple(every)
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(names, description="Tracing"):
            try:
                found += sent_by(name, every[name])
            except Exception as error:  # others are still of use
                failed[name] = f"{type(error).__name__}: {error}"
    for line in table(found, len(names) - len(failed), options.rows):
        console.print(line, markup=False, soft_wrap=True)
    for name, said in failed.items():
        console.print(f"Not run: {name}: {said}", style="red", markup=False, soft_wrap=True)
    return 1 if failed else 0


def table(found: Iterable[Sent], programs: int, rows: int) -> Iterator[str]:
    """Yields the lines of a table in Markdown, a row for what one kind of operation asks for.

    Args:
      found: What programs send.
      programs: The number of programs.
      rows: The number of rows, those of the largest tensors.
    """
    groups: dict[tuple[str, str, bool], list[Sent]] = {}
    for each in found:
        groups.setdefault((each.kind, each.why, each.in_rounds), []).append(each)
    ordered = sorted(groups.items(), key=lambda item: -_largest(item[1]))
    yield "| bytes | what | asked for by | programs |"
    yield "|---|---|---|---|"
    for (kind, why, in_rounds), group in ordered[:rows]:
        size = words.size(_largest(group)) if _largest(group) >= 0 else "the step knows"
        each_round = ", each round" if in_rounds else ""
        yield f"| {size}{each_round} | {kind} | {why} | {_named(group)} |"
    yield ""
    gathers = {each.program for each in found if each.kind == "gather"}
    rest = max(0, len(ordered) - rows)
    yield (
        f"Of {words.count(programs, 'program')} {len(gathers)} gather something; "
        f"{words.count(rest, 'smaller row')} left out."
    )


def _largest(group: Sequence[Sent]) -> int:
    return max(-1 if each.size_bytes is None else each.size_bytes for each in group)


def _named(group: Sequence[Sent]) -> str:
    """Returns the program that sends most, and the number of others."""
    first = max(group, key=lambda each: -1 if each.size_bytes is None else each.size_bytes).program
    others = len({each.program for each in group}) - 1
    return f"{first} and {words.count(others, 'other')}" if others else first
