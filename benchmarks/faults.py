"""The benchmark of faults: runs that are killed and stopped end as if they had not been."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import faults_training
from benchmarks.faults_training import KINDS, PHASES
from tfdp.command_line import add_command, check, option, require, set_environment

# A fault: phase, kind, rank, skip and delay, as `faults_training` takes them.
Fault = dict[str, object]

_RUN = "TFDP_BENCHMARK_RUN"  # by which the processes of a run are known
_MAX_STARTS = 40
_RUN_SECONDS = 900.0
_LEFT_SECONDS = 10.0
_TOLERANCE = 1e-5

# No process comes to a step sooner after it was started.
_START_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class FaultsOptions:
    """The choices of one table."""

    runs: int = option(20, "runs (%(default)s)", at_least=1)
    faults: int = option(5, "faults of each run (%(default)s)", at_least=1)
    processes: tuple[int, ...] = option(
        (2, 3), "ranks, with commas between; runs take them in turn (2,3)", metavar="NUMBERS"
    )
    elastic: bool = option(
        False,
        "change the number of ranks at each fault, from 1 to those of the run, and compare the "
        "weights with those of one rank",
    )
    seed: int = option(-1, "the draw; -1 takes another one each time (%(default)s)", at_least=-1)

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True)
class Run:
    """The way in which one run went.

    Attributes:
      faults: The faults that came, each with the seconds from it to the next step; None if no step
        was left.
      digest: What all ranks ended with; empty if they differed, or did not end.
      first_step: Seconds from the start to the first step.
      starts: How often the command was started.
      left: Processes that were left running.
      weights: Of an elastic run, what each rank has ended with.
    """

    faults: Sequence[tuple[Fault, float | None]]
    digest: str
    first_step: float
    starts: int
    left: int
    weights: Sequence[Sequence[np.ndarray]] = ()


def add_faults(commands: argparse._SubParsersAction) -> None:
    """Adds `faults` to the benchmarks."""
    add_command(
        commands,
        "faults",
        FaultsOptions,
        _faults,
        help="runs under kills, hangs, signals, full disks and damaged checkpoints",
        description="Runs a small training under faults that a seed draws, at any phase, and "
        "compares the result with an undisturbed run of as many ranks, bit for bit.",
    )


def _faults(options: FaultsOptions, parser: argparse.ArgumentParser) -> int:
    require(["tensorflow"], parser)
    set_environment()
    return run(options)


def drawn(
    seed: int, runs: int, faults: int, processes: Sequence[int], elastic: bool = False
) -> list[list[Fault]]:
    """Returns the faults of each run; each kind comes as often as any other.

    The last fault of every second run comes at the training's end, after which no step is left.
    After a full disk the run goes on, so the next fault comes at a phase that is still to come.

    >>> [fault] = drawn(1, 1, 1, [2])[0]
    >>> sorted(fault)
    ['delay', 'kind', 'phase', 'rank', 'skip']
    """
    draws = random.Random(seed)
    kinds = [KINDS[i % len(KINDS)] for i in range(runs * faults)]
    phases = [PHASES[i % (len(PHASES) - 1)] for i in range(runs * faults)]
    draws.shuffle(kinds)
    draws.shuffle(phases)
    drawn = []
    for number in range(runs):
        ranks = processes[number % len(processes)]
        of_run: list[Fault] = []
        for index in range(faults):
            phase, kind = phases.pop(), kinds.pop()
            if index == faults - 1 and number % 2 == 0:
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
    elastic = options.elastic
    baselines = [1] if elastic else sorted(set(options.processes))
    undisturbed = {ranks: one_run(ranks, [], elastic) for ranks in baselines}
    alike = "the same weights within 1e-5" if elastic else "the same bits"
    draw = drawn(seed, options.runs, options.faults, options.processes, elastic)
    results = []
    for number, faults in enumerate(draw):
        ranks = options.processes[number % len(options.processes)]
        done = one_run(ranks, faults, elastic)
        expected = undisturbed[1 if elastic else ranks]
        same = done.digest != "" and (
            _close(done, expected) if elastic else done.digest == expected.digest
        )
        results.append((done, same, expected.first_step))
        said = "; ".join(
            f"{fault['kind']} ({fault['phase']}, rank {fault['rank']}"
            + (f", then {fault['slots']} ranks)" if elastic else ")")
            + ("" if took is None else f" {took:.1f} s")
            for fault, took in done.faults
        )
        verdict = alike if same else "ANOTHER RESULT"
        verdict += f", {done.left} processes LEFT" if done.left else ""
        console.print(
            f"run {number + 1}: {ranks} ranks, {done.starts} starts: {verdict}. {said}",
            highlight=False,
            soft_wrap=True,
        )
    _print_tables(console, results, alike)
    return 0 if all(same and not done.left for done, same, _ in results) else 1


def one_run(ranks: int, faults: Sequence[Fault], elastic: bool = False) -> Run:
    """Runs the training to its end, starting the command again as a scheduler would.

    Args:
      ranks: The number of ranks.
      faults: The faults.
      elastic: Whether each fault changes that number, within its limit.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "faults.json").write_text(json.dumps(list(faults)))
        command = [sys.executable, "-m", "tfdp.cli", "run", "--max-restarts", "20", "-n"]
        if elastic:
            slots = folder / faults_training.SLOTS
            slots.write_text(str(ranks))
            command += [f"1:{ranks}", "--discover", f"cat {slots}", "--discover-every", "0.5"]
        else:
            command += [str(ranks)]
        command += [faults_training.__file__, name]
        began = time.monotonic()
        code, starts = None, 0
        while code != 0 and starts < _MAX_STARTS and time.monotonic() < began + _RUN_SECONDS:
            with open(folder / "output", "ab") as output:
                launcher = subprocess.Popen(
                    command, stdout=output, stderr=output, env={**os.environ, _RUN: name}
                )
            (folder / "launcher").write_text(str(launcher.pid))
            starts += 1
            try:
                code = launcher.wait(_RUN_SECONDS)
            finally:
                launcher.kill()
        told = [folder / f"digest-{rank}" for rank in range(1 if elastic else ranks)]
        digests = {path.read_text() if path.exists() else "" for path in told}
        digest = digests.pop() if code == 0 and len(digests) == 1 else ""
        weights = []
        for path in sorted(folder.glob("weights-*.npz")) if elastic else ():
            with np.load(path) as kept:
                weights.append([kept[key] for key in kept])
        if not digest:
            sys.stderr.write((folder / "output").read_text(errors="replace")[-4000:])
        steps = _steps(folder)
        return Run(
            faults=_with_recoveries(folder, faults, steps),
            digest=digest,
            first_step=min(steps, default=float("nan")) - began,
            starts=starts,
            left=_left(name),
            weights=weights,
        )


def _steps(folder: pathlib.Path) -> list[float]:
    """Returns when steps ended on rank 0, in seconds."""
    path = folder / "events"
    lines = path.read_text().splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines]
    return [seconds for seconds, rank, what in events if (rank, what) == (0, "step")]


def _with_recoveries(
    folder: pathlib.Path, faults: Sequence[Fault], steps: Sequence[float]
) -> list[tuple[Fault, float | None]]:
    """Returns the faults that came, each with the seconds to the next step of a new attempt.

    They are None where no step came before the next fault, or before the end.
    """
    marks = [folder / f"fault-{number}" for number in range(len(faults))]
    times = [float(mark.read_text()) for mark in marks if mark.exists()]
    recovered: list[tuple[Fault, float | None]] = []
    for number, when in enumerate(times):
        # A rank that was killed makes no step until TensorFlow has started again.
        after = [step for step in steps if step - when > _START_SECONDS]
        soonest = min(after, default=float("inf"))
        until = times[number + 1] if number + 1 < len(times) else float("inf")
        goes_on = faults[number]["kind"] == "full disk"
        took = None if goes_on or soonest >= until else soonest - when
        recovered.append((faults[number], took))
    return recovered


def _left(name: str) -> int:
    """Returns how many processes of a run are left when all should have ended."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while left := _processes_of(name):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return len(left)


def _processes_of(name: str) -> list[int]:
    mark = f"{_RUN}={name}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def _close(run: Run, expected: Run) -> bool:
    """Returns whether the weights of all ranks are those expected, within 1e-5 of the largest."""
    (wanted,) = expected.weights
    largest = max(np.abs(value).max() for value in wanted)
    return all(
        np.abs(value.astype("float64") - other).max() < _TOLERANCE * largest
        for weights in run.weights
        for value, other in zip(weights, wanted, strict=True)
    )


def _print_tables(console: Console, results: Sequence[tuple[Run, bool, float]], alike: str) -> None:
    same = sum(same for _, same, _ in results)
    left = sum(done.left for done, _, _ in results)
    faults = [(fault, took, start) for done, _, start in results for fault, took in done.faults]
    console.print(
        f"{len(faults)} faults in {len(results)} runs: {same} runs ended with "
        f"{alike} as the undisturbed one; {left} processes were left running."
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
