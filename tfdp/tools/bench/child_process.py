"""The run of a measurement in a child process that has a deadline, and prints JSON."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tfdp.base import gpus

_STDERR_TAIL_LINES = 15
_LAST_WORDS_SECONDS = 5.0

# Two inter-op threads, the default on two cores, can starve iterators of several local devices.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "8",
}

# The variables by which `tfdp run` makes processes on one host fast, and which users of the stock
# strategy do not set.
_LAUNCHER_SETTINGS = (
    "OMP_NUM_THREADS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
)


def unset_launcher_settings() -> list[str]:
    """Returns words before a rank's command by which it runs as without `tfdp run`."""
    return ["env", *(part for name in _LAUNCHER_SETTINGS for part in ("-u", name))]


@dataclasses.dataclass(frozen=True)
class ChildFailure:
    """A child that did not deliver.

    Args:
      command: The command that was run.
      reason: The exit status, the signal or the deadline.
      stderr_tail: The last lines that the child wrote to standard error.
    """

    command: str
    reason: str
    stderr_tail: str

    def __str__(self) -> str:
        return f"`{self.command}` {self.reason}\n{self.stderr_tail}"


def run_module(
    module: str,
    arguments: Sequence[str],
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    on_gpus: bool = False,
) -> subprocess.CompletedProcess[str] | ChildFailure:
    """Runs `python -m module arguments`.

    Args:
      module: The module to run.
      arguments: Its command line.
      timeout_seconds: The time after which the child is killed, and all in its session.
      environment: Variables that the child has, unless this process has others of their name.
      on_gpus: Whether the child sees the GPUs that this process sees; else it sees none.

    Returns:
      The finished child with its output, or a :class:`ChildFailure` if it fails or takes too long.
    """
    command = [sys.executable, "-m", module, *arguments]
    visible = {gpus.VISIBLE: os.environ.get(gpus.VISIBLE)} if on_gpus else {}
    environ = {**(environment or {}), **os.environ, **ENVIRONMENT, **visible}
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={name: value for name, value in environ.items() if value is not None},
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        reason = f"was killed after {timeout_seconds:g} s"
        return failure(module, arguments, reason, _ended(child))
    except BaseException:
        _ended(child)
        raise
    if child.returncode != 0:
        reason = f"exited with status {child.returncode}"
        return failure(module, arguments, reason, stderr)
    return subprocess.CompletedProcess(command, 0, stdout, stderr)


def run_for_json(
    module: str,
    arguments: Sequence[str],
    timeout_seconds: float,
    prefix: str = "",
    environment: Mapping[str, str] | None = None,
    on_gpus: bool = False,
) -> dict | ChildFailure:
    """Runs a module like `run_module`, and parses the last line that it prints.

    Args:
      module: A module that prints a JSON object as its last line.
      arguments: Its command line.
      timeout_seconds: The time after which the child is killed.
      prefix: The beginning of the line before the JSON; lines without it are skipped.
      environment: Variables that the worker has, unless this process has others of their name.
      on_gpus: Whether the worker sees the GPUs that this process sees; else none.

    Returns:
      The object, or a :class:`ChildFailure` if the child fails, prints no JSON or takes too long.
    """
    child = run_module(module, arguments, timeout_seconds, environment, on_gpus)
    if isinstance(child, ChildFailure):
        return child
    lines = [line for line in child.stdout.splitlines() if line.startswith(prefix)]
    try:
        return json.loads(lines[-1].removeprefix(prefix))
    except (IndexError, json.JSONDecodeError):
        return failure(module, arguments, f"printed no JSON but {lines[-1:]}", child.stderr)


def _ended(child: subprocess.Popen[str]) -> str:
    """Kills a child with all that it has started, and returns its standard error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        return child.communicate(timeout=_LAST_WORDS_SECONDS)[1]
    except subprocess.TimeoutExpired as expired:  # a driver's call may outlast the signal
        # It holds bytes even where text was requested.
        return (expired.stderr or b"").decode(errors="replace")


def failure(module: str, arguments: Sequence[str], reason: str, stderr: str) -> ChildFailure:
    """Returns the failure of a child that was started as `python -m module arguments`."""
    return ChildFailure(" ".join(["python", "-m", module, *arguments]), reason, _tail(stderr))


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_STDERR_TAIL_LINES:])
