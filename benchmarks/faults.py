"""The benchmark of faults: runs that are killed and stopped end as if they had not been."""

import argparse
import collections
import dataclasses
import random
import statistics
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import faults_links
from benchmarks.faults_run import Fault, Run, one_run
from benchmarks.faults_training import KINDS, PHASES
from tfdp.base.command_line import add_command, check, option, require, set_environment

_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class FaultsOptions:
    """The choices of one table."""

    runs: int = option(20, "runs (%(default)s)", at_least=0)
    faults: int = option(5, "faults of each run (%(default)s)", at_least=1)
    processes: tuple[int, ...] = option(
        (2, 3), "ranks, with commas between; runs take them in turn (2,3)", metavar="NUMBERS"
    )
    elastic: bool = option(
        False,
        "change the number of ranks at each fault, from 1 to those of the run, and compare the "
        "weights with those of one rank",
    )
    kinds: tuple[str, ...] = option(
        KINDS,
        f"kinds of faults, with commas between: {', '.join(KINDS)} (all)",
        choices=KINDS,
        metavar="NAMES",
    )
    phases: tuple[str, ...] = option(
        PHASES,
        f"phases at which they come, with commas between: {', '.join(PHASES)} (all)",
        choices=PHASES,
        metavar="NAMES",
    )
    cut_runs: int = option(
        3,
        "more runs, on two hosts whose link is cut (%(default)s); they are network namespaces, and "
        "are left out without the rights of root",
        at_least=0,
    )
    seed: int = option(-1, "the draw; -1 takes another one each time (%(default)s)", at_least=-1)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class Result:
    """A run beside the undisturbed one.

    Attributes:
      run: The run.
      same: Whether it ended as the undisturbed one.
      first_step: Seconds from an undisturbed start to the first step: of the run itself, where no
        fault came before that, else of the undisturbed run.
    """

    run: Run
    same: bool
    first_step: float

    @property
    def is_right(self) -> bool:
        """Whether it ended alike, and left nothing running."""
        return self.same and not self.run.left


def add_faults(commands: argparse._SubParsersAction) -> None:
    """Adds `faults` to the benchmarks."""
    add_command(
        commands,
        "faults",
        FaultsOptions,
        _faults,
        help="runs under kills, hangs, signals, full disks and damaged checkpoints",
        description="Runs a small training under faults that a seed draws, at any phase, and "
        "compares the result with an undisturbed run of as many ranks, bit for bit. In more runs "
        "two ranks are on two hosts whose link is cut, for a while or for good.",
    )


def _faults(options: FaultsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def drawn(
    seed: int,
    runs: int,
    faults: int,
    processes: Sequence[int],
    elastic: bool = False,
    kinds: Sequence[str] = KINDS,
    phases: Sequence[str] = PHASES,
) -> list[list[Fault]]:
    """Returns the faults of each run; each kind comes as often as any other.

    The last fault of every second run comes at the training's end, after which no step is left, if
    that is among the phases.
    After a full disk the run goes on, so the next fault comes at a phase that is still to come.

    >>> [fault] = drawn(1, 1, 1, [2])[0]
    >>> sorted(fault)
    ['delay', 'kind', 'phase', 'rank', 'skip']
    """
    draws = random.Random(seed)
    before_the_end = [phase for phase in phases if phase != PHASES[-1]] or list(phases)
    drawn_kinds = [kinds[i % len(kinds)] for i in range(runs * faults)]
    drawn_phases = [before_the_end[i % len(before_the_end)] for i in range(runs * faults)]
    draws.shuffle(drawn_kinds)
    draws.shuffle(drawn_phases)
    drawn = []
    for number in range(runs):
        ranks = processes[number % len(processes)]
        of_run: list[Fault] = []
        for index in range(faults):
            phase, kind = drawn_phases.pop(), drawn_kinds.pop()
            if index == faults - 1 and number % 2 == 0 and PHASES[-1] in phases:
                phase = PHASES[-1]
            elif of_run and of_run[-1]["kind"] == "full disk":
                phase = draws.choice(["step", "evaluate"])
            alone = phase == "save" or kind == "full disk"  # rank 0 alone writes
            of_run.append(
                {
                    "phase": phase,
                    "kind": kind,
                    "rank": 0 if alone else draws.randrange(ranks),
                    "skip": draws.randrange(4) if phase == "step" else 0,
                    "delay": draws.choice([0.0, 0.001, 0.01, 0.05]),
                }
            )
        if elastic:
            for fault in of_run:
                fault["slots"] = draws.randrange(1, ranks + 1)
        drawn.append(of_run)
    return drawn


def run(options: FaultsOptions, console: Console | None = None) -> int:
    """Runs the undisturbed trainings and the disturbed ones, and prints the tables.

    Returns:
      The exit code: 0, or 1 where a run ended otherwise than the undisturbed one, or a process was
      left running.
    """
    console = console or Console()
    seed = options.seed if options.seed >= 0 else random.SystemRandom().randrange(10**6)
    console.print(f"--seed {seed}", highlight=False)
    results = [*_runs(options, seed, console), *_cut_runs(options, seed, console)]
    _print_tables(console, results)
    return 0 if all(result.is_right for result in results) else 1


def _runs(options: FaultsOptions, seed: int, console: Console) -> Iterator[Result]:
    elastic = options.elastic
    draw = drawn(
        seed,
        options.runs,
        options.faults,
        options.processes,
        elastic,
        options.kinds,
        options.phases,
    )
    undisturbed: dict[int, Run] = {}
    for number, faults in enumerate(draw):
        ranks = options.processes[number % len(options.processes)]
        alike = 1 if elastic else ranks
        if alike not in undisturbed:
            undisturbed[alike] = one_run(alike, [], elastic)
        done = one_run(ranks, faults, elastic)
        yield _told(console, f"{number + 1}: {ranks} ranks", done, undisturbed[alike])


def _cut_runs(options: FaultsOptions, seed: int, console: Console) -> Iterator[Result]:
    reason = faults_links.why_not() if options.cut_runs else None
    if reason is not None:
        console.print(f"No link is cut: {reason}", highlight=False, soft_wrap=True)
        return
    undisturbed: dict[bool, Run] = {}
    for number, (start, faults) in enumerate(faults_links.drawn(seed, options.cut_runs)):
        elastic = ":" in start
        if elastic not in undisturbed:
            undisturbed[elastic] = faults_links.undisturbed(start)
        done = faults_links.one_run_on_hosts(start, faults)
        name = f"{options.runs + number + 1}: 2 ranks on 2 hosts, {start}"
        yield _told(console, name, done, undisturbed[elastic])


def _told(console: Console, name: str, done: Run, expected: Run) -> Result:
    """Prints how a run went, and returns it."""
    same = done.digest != "" and (
        _close(done, expected) if done.weights else done.digest == expected.digest
    )
    verdict = "ANOTHER RESULT"
    if same:
        verdict = "the same weights within 1e-5" if done.weights else "the same bits"
    verdict += f", {done.left} processes LEFT" if done.left else ""
    said = "; ".join(
        f"{fault['kind']} ({fault['phase']}, rank {fault['rank']}"
        + (f", then {fault['slots']} ranks)" if "slots" in fault else ")")
        + ("" if took is None else f" {took:.1f} s")
        for fault, took in done.faults
    )
    line = f"run {name}, {done.starts} starts, first step {done.first_step:.1f} s: "
    line += f"{verdict}. {said}"
    console.print(line, highlight=False, soft_wrap=True)
    # A run's own start is the better measure of the machine just then, where no fault came in it.
    own = bool(done.faults) and _is_after_the_first_step(done.faults[0][0])
    return Result(done, same, done.first_step if own else expected.first_step)


def _is_after_the_first_step(fault: Fault) -> bool:
    return fault["phase"] in ("save", "evaluate", "end") or bool(fault["skip"])


def _close(run: Run, expected: Run) -> bool:
    """Returns whether the weights of all ranks are those expected, within 1e-5 of the largest."""
    (wanted,) = expected.weights
    largest = max(np.abs(value).max() for value in wanted)
    return all(
        np.abs(value.astype("float64") - other).max() < _TOLERANCE * largest
        for weights in run.weights
        for value, other in zip(weights, wanted, strict=True)
    )


def _print_tables(console: Console, results: Sequence[Result]) -> None:
    same = sum(result.same for result in results)
    left = sum(result.run.left for result in results)
    faults = [(fault, took, r.first_step) for r in results for fault, took in r.run.faults]
    console.print(
        f"{len(faults)} faults in {len(results)} runs: {same} runs ended as the undisturbed ones; "
        f"{left} processes were left running."
    )
    for name in ("phase", "kind"):
        table = Table(title=f"seconds from a fault to the next step, by {name}")
        for column in (name, "faults", "median", "most", "median beyond a start"):
            table.add_column(column)
        groups: dict[object, list[tuple[float | None, float]]] = collections.defaultdict(list)
        for fault, took, start in faults:
            groups[fault[name]].append((took, start))
        for group, times in groups.items():
            seconds = [took for took, _ in times if took is not None]
            beyond = [took - start for took, start in times if took is not None]
            row = ["-", "-", "-"]
            if seconds:
                figures = statistics.median(seconds), max(seconds), statistics.median(beyond)
                row = [f"{figure:.1f}" for figure in figures]
            table.add_row(str(group), str(len(times)), *row)
        console.print(table)
