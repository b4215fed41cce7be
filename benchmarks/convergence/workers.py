"""Runs in processes of their own, a few at once, each with a deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

from benchmarks.convergence.runs import Outcome, Run, from_json
from benchmarks.convergence.worker import request
from tfdp.tools.bench.child_process import ENVIRONMENT, ChildFailure, failure

_MODULE = "benchmarks.convergence.worker"
_POLL_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class _Started:
    run: Run
    process: subprocess.Popen[bytes]
    deadline: float
    stdout: IO[bytes]
    stderr: IO[bytes]


class Workers:
    """The processes that train, for use in a `with`, whose end kills those that still do.

    Args:
      jobs: The number of processes at once; each takes its share of the cores for an operation's
        threads.
      timeout_seconds: The time after which a process is killed.
      data: The path of the transformer's texts.
    """

    def __init__(self, jobs: int, timeout_seconds: float, data: pathlib.Path | None) -> None:
        self._jobs = jobs
        self._timeout_seconds = timeout_seconds
        self._data = data
        self._started: list[_Started] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started:
            self._kill(started)
            self._close(started)

    @property
    def running(self) -> list[Run]:
        """The runs that are being trained."""
        return [started.run for started in self._started]

    @property
    def free(self) -> bool:
        """Whether another run can be started."""
        return len(self._started) < self._jobs

    def start(self, run: Run) -> None:
        """Starts a run, which also ends if this process is killed."""
        cores = len(os.sched_getaffinity(0))
        threads = str(max(1, cores // self._jobs))
        stdout = tempfile.TemporaryFile()  # noqa: SIM115
        stderr = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={
                **os.environ,
                **ENVIRONMENT,
                "TF_NUM_INTRAOP_THREADS": threads,
                "OMP_NUM_THREADS": threads,
            },
            # A Ctrl-C is for this process, which ends the workers.
            start_new_session=True,
        )
        deadline = time.monotonic() + self._timeout_seconds
        self._started.append(_Started(run, process, deadline, stdout, stderr))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the worker has ended; `wait` says how
            process.stdin.write(request(run, self._data).encode())
            process.stdin.flush()

    def wait(self) -> tuple[Run, Outcome | ChildFailure]:
        """Waits for the next run that ends or takes too long, and returns it with its result."""
        while True:
            for started in self._started:
                late = time.monotonic() > started.deadline
                if late:
                    self._kill(started)
                    started.process.wait()
                if started.process.poll() is not None:
                    self._started.remove(started)
                    result = self._result(started, late)
                    self._close(started)
                    return started.run, result
            time.sleep(_POLL_SECONDS)

    def _result(self, started: _Started, late: bool) -> Outcome | ChildFailure:
        stdout, stderr = (_text(file) for file in (started.stdout, started.stderr))
        status = started.process.returncode
        words = [f"({started.run})"]
        if late:
            return failure(_MODULE, words, f"was killed after {self._timeout_seconds:g} s", stderr)
        if status != 0:
            return failure(_MODULE, words, f"exited with status {status}", stderr)
        lines = stdout.splitlines()
        try:
            run, outcome = from_json(json.loads(lines[-1]))
            if run != started.run:
                raise ValueError("of another run")
            return outcome
        except (IndexError, ValueError) as error:
            return failure(_MODULE, words, f"printed {lines[-1:]} ({error})", stderr)

    @staticmethod
    def _kill(started: _Started) -> None:
        """Kills a worker, and the launcher of its ranks, which is in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGKILL)

    @staticmethod
    def _close(started: _Started) -> None:
        assert started.process.stdin is not None
        started.process.wait()
        for file in (started.process.stdin, started.stdout, started.stderr):
            with contextlib.suppress(BrokenPipeError):
                file.close()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
