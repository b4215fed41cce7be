"""The demo's second run in several processes: started as a cluster, its result read from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

from tfdp import launch
from tfdp.demo.demo_command import DemoOptions
from tfdp.demo.train import TrainingRun
from tfdp.files import temporary_folder

_RESULT = "result.npz"
_STEPS = "steps"
_LOOK_EVERY_SECONDS = 0.2

# What TensorFlow logs as information before it has read how much it should log.
_CHATTER = re.compile(r"\[\d+\] (I\d{4} |WARNING: All log messages before )")


class RanksFailedError(RuntimeError):
    """A rank of the run did not end well; the launcher has said which one, and its last error.

    Args:
        exit_code: the launcher's, not 0.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the launcher ended with exit code {exit_code}")
        self.exit_code = exit_code


def train_in_processes(
    options: DemoOptions, on_steps: Callable[[int], None] = lambda steps: None
) -> TrainingRun:
    """Trains as :func:`tfdp.demo.train.train` does, in `options.processes` processes.

    1. `tfdp.launch` starts :mod:`tfdp.demo.rank` in each, with a `TF_CONFIG` of loopback addresses.
    2. Rank 0 leaves a byte in a file after each step, and its :class:`TrainingRun` at the end.
    3. This process reads both.

    Args:
        options: what to train, and on how many replicas and processes.
        on_steps: called now and then, in another thread, with the number of steps done.

    Raises:
        RanksFailedError: a rank failed, or the run was interrupted.
    """
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        calm: Any = _WithoutChatter(sys.stderr)
        with _watching(folder / _STEPS, on_steps), contextlib.redirect_stderr(calm):
            code = launch.run(
                launch.RunOptions(
                    processes=options.processes,
                    command=rank_command(options, folder),
                    devices_per_process=options.replicas_per_process,
                )
            )
        if code != 0:
            raise RanksFailedError(code)
        return load_run(folder / _RESULT)


def rank_command(options: DemoOptions, folder: pathlib.Path) -> tuple[str, ...]:
    """The words that start a rank."""
    told = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    words = json.dumps(told | {"output": str(options.output.absolute())})
    return (sys.executable, "-m", "tfdp.demo.rank", words, str(folder))


def told_options(words: str) -> DemoOptions:
    """The options in a rank's command."""
    told = json.loads(words)
    return DemoOptions(**told | {"output": pathlib.Path(told["output"])})


def save_run(run: TrainingRun, folder: pathlib.Path) -> None:
    """Leaves rank 0's result for :func:`train_in_processes`."""
    np.savez(
        folder / _RESULT,
        *run.weights,  # NumPy calls them arr_0, arr_1, ...
        history=np.array(json.dumps(run.history)),
        step_seconds=np.array(run.step_seconds),
    )


def load_run(path: pathlib.Path) -> TrainingRun:
    """What :func:`save_run` left."""
    with np.load(path) as file:
        count = sum(name.startswith("arr_") for name in file.files)
        return TrainingRun(
            history=json.loads(str(file["history"])),
            step_seconds=file["step_seconds"].tolist(),
            weights=[file[f"arr_{index}"] for index in range(count)],
        )


@contextlib.contextmanager
def step_signs(folder: pathlib.Path) -> Iterator[Callable[[], None]]:
    """A function for rank 0 to call after each step."""
    with (folder / _STEPS).open("wb", buffering=0) as file:

        def sign() -> None:
            file.write(b".")

        yield sign


@contextlib.contextmanager
def _watching(path: pathlib.Path, on_steps: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_steps` whenever the file has grown."""
    stop = threading.Event()

    def look() -> None:
        with contextlib.suppress(FileNotFoundError):
            on_steps(path.stat().st_size)

    def watch() -> None:
        while not stop.wait(_LOOK_EVERY_SECONDS):
            look()

    thread = threading.Thread(target=watch, name="demo-steps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        look()


class _WithoutChatter:
    """Standard error for the launcher: whole lines of bytes, to a stream that a bar is drawn on."""

    def __init__(self, stream: TextIO) -> None:
        self.buffer = self
        self._stream = stream

    def write(self, data: bytes) -> int:
        for line in data.decode(errors="backslashreplace").splitlines(keepends=True):
            if not _CHATTER.match(line):
                self._stream.write(line)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()
