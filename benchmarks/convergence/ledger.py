"""The file of finished runs: a line of JSON each, appended as they finish."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator

from benchmarks.convergence.runs import Outcome, Run, from_json, to_json


class LedgerError(ValueError):
    """An error where the file is not one of finished runs, or is in use."""


def read(path: pathlib.Path) -> dict[Run, Outcome]:
    """Returns all finished runs of the file, in its order; none without a file.

    A last line without its end was cut off when its writer was killed: it is skipped, and the next
    `append` removes it.

    Raises:
      LedgerError: Another line cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    runs = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            run, outcome = from_json(json.loads(line))
        except ValueError as error:
            raise LedgerError(
                f"every line of `results` must be a finished run; received line {number} of "
                f"{path}, which is none ({error}); remove that line, or name another file with "
                "`--results`."
            ) from error
        runs[run] = outcome
    return runs


def append(path: pathlib.Path, run: Run, outcome: Outcome) -> None:
    """Adds a finished run, which is on the disk when this function returns."""
    line = json.dumps(to_json(run, outcome), separators=(",", ":"), allow_nan=False) + "\n"
    with path.open("a+b") as file:
        file.truncate(_end_of_last_whole_line(path))
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Keeps other commands from adding to the file meanwhile; the system frees the lock at our end.

    Raises:
      LedgerError: Another command adds to the file.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"one command at a time may add to `results`; received {path}, to which another "
                "is adding; wait for it, name another file with `--results`, or only show what is "
                "there with `--minutes 0`."
            ) from None
        yield


def _end_of_last_whole_line(path: pathlib.Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
