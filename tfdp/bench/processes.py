"""A measurement in a child process that has a deadline."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

_STDERR_TAIL_LINES = 15

# Two inter-op threads, the default on two cores, can starve iterators of several local devices.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "8",
}


@dataclasses.dataclass(frozen=True)
class Failure:
    """A child that did not deliver.

    Args:
        command: what was run.
        reason: the exit status, the signal or the deadline.
        stderr_tail: the last lines that it wrote to standard error.
    """

    command: str
    reason: str
    stderr_tail: str

    def __str__(self) -> str:
        return f"`{self.command}` {self.reason}\n{self.stderr_tail}"


def run_for_json(
    module: str, arguments: Sequence[str], timeout_seconds: float, prefix: str = ""
) -> dict | Failure:
    """Runs `python -m module arguments` and parses the last line that it prints.

    Args:
        module: a module that prints a JSON object as its last line.
        arguments: its command line.
        timeout_seconds: after this time the child is killed.
        prefix: what the line begins with, before the JSON; others are passed by.

    Returns:
        The object, or a :class:`Failure` where the child fails, says nothing or takes too long.
    """
    command = [sys.executable, "-m", module, *arguments]
    shown = " ".join(["python", *command[1:]])
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env={**os.environ, **_ENVIRONMENT},
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        # TimeoutExpired holds bytes even where text was asked for.
        stderr = (expired.stderr or b"").decode(errors="replace")
        return Failure(shown, f"was killed after {timeout_seconds:g} s", _tail(stderr))
    if child.returncode != 0:
        return Failure(shown, f"exited with status {child.returncode}", _tail(child.stderr))
    lines = [line for line in child.stdout.splitlines() if line.startswith(prefix)]
    try:
        return json.loads(lines[-1].removeprefix(prefix))
    except (IndexError, json.JSONDecodeError):
        return Failure(shown, f"printed no JSON but {lines[-1:]}", _tail(child.stderr))


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_STDERR_TAIL_LINES:])
