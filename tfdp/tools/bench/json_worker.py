"""The run of a worker process that prints its measurements as JSON."""

import json
from collections.abc import Mapping, Sequence

from tfdp.tools.bench.child_process import ChildFailure, failure, run_module


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
