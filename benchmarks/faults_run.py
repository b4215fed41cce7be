"""One run of the benchmark of faults: a training that is started again until it has ended."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks import faults_training

# A fault: phase, kind, rank, skip and delay, as `faults_training` takes them.
Fault = dict[str, object]

_RUN = "TFDP_BENCHMARK_RUN"  # by which the processes of a run are known
_MAX_STARTS = 40
_RUN_SECONDS = 900.0
_LEFT_SECONDS = 10.0

# No process comes to a step sooner after it was started.
_START_SECONDS = 2.0


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
      losses: For each step, from the first, the number of ranks that made it for good, and the loss
        after it, the mean of the epoch so far.
    """

    faults: Sequence[tuple[Fault, float | None]]
    digest: str
    first_step: float
    starts: int
    left: int
    weights: Sequence[Sequence[np.ndarray]] = ()
    losses: Sequence[tuple[int, float]] = ()


def one_run(
    ranks: int,
    faults: Sequence[Fault],
    elastic: bool = False,
    length: Mapping[str, float] | None = None,
    most: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Run:
    """Runs the training to its end, starting the command again as a scheduler would.

    Args:
      ranks: The number of ranks.
      faults: The faults.
      elastic: Whether each fault changes that number, within its limit.
      length: The epochs, and the seconds between two steps; None: those of `faults_training`.
      most: The most ranks of an elastic run; None: as many as at its beginning.
      environ: What is set in its environment.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "faults.json").write_text(json.dumps(list(faults)))
        if length is not None:
            (folder / faults_training.LENGTH).write_text(json.dumps(dict(length)))
        command = [sys.executable, "-m", "tfdp.tools.cli", "run", "--max-restarts", "20", "-n"]
        if elastic:
            slots = folder / faults_training.SLOTS
            slots.write_text(str(ranks))
            command += [
                f"1:{most or ranks}",
                "--discover",
                f"cat {slots}",
                "--discover-every",
                "0.5",
            ]
        else:
            command += [str(ranks)]
        command += [faults_training.__file__, name]

        def start() -> int:
            with started(folder, command, **(environ or {})) as launcher:
                (folder / "launcher").write_text(str(launcher.pid))
                return launcher.wait(_RUN_SECONDS)

        return until_ended(folder, start, 1 if elastic else ranks, faults)


@contextlib.contextmanager
def started(
    folder: pathlib.Path, command: Sequence[str], **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process of a run, whose output goes to the run's folder; it is killed at the end."""
    environ = {**os.environ, **environ, _RUN: str(folder)}
    with open(folder / "output", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_ended(
    folder: pathlib.Path,
    start: Callable[[], int],
    ranks: int,
    faults: Sequence[Fault],
) -> Run:
    """Starts a training again until it has ended with 0, and returns how it went.

    Args:
      folder: The run's folder.
      start: Starts it, waits for its end, and returns the exit code.
      ranks: The number of ranks that tell what they have ended with.
      faults: The faults.
    """
    began = time.monotonic()
    code, starts = None, 0
    while code != 0 and starts < _MAX_STARTS and time.monotonic() < began + _RUN_SECONDS:
        starts += 1
        code = start()
    told = [folder / f"digest-{rank}" for rank in range(ranks)]
    digests = {path.read_text() if path.exists() else "" for path in told}
    digest = digests.pop() if code == 0 and len(digests) == 1 else ""
    weights = []
    for path in sorted(folder.glob("weights-*.npz")):
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
        left=_left(str(folder)),
        weights=weights,
        losses=_losses(folder),
    )


def _losses(folder: pathlib.Path) -> list[tuple[int, float]]:
    """Returns ranks and loss of each step; one that was made again counts as it was made last."""
    path = folder / faults_training.LOSSES
    lines = path.read_text().splitlines() if path.exists() else []
    by_step = {step: (ranks, loss) for step, ranks, loss in map(json.loads, lines)}
    return [by_step[step] for step in sorted(by_step)]


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
