"""One log per rank, in a folder."""

from __future__ import annotations

import itertools
import pathlib
from typing import BinaryIO


def log_path(folder: pathlib.Path, rank: int) -> pathlib.Path:
    """Where the output of a rank goes."""
    return folder / f"rank-{rank}.log"


def open_logs(folder: pathlib.Path, ranks: int) -> list[BinaryIO]:
    """Makes the folder as `prepare_log_folder` does, and opens an empty log for each rank.

    Raises:
        OSError: the folder cannot be made or written.
    """
    try:
        prepare_log_folder(folder)
        return [log_path(folder, rank).open("wb", buffering=0) for rank in range(ranks)]
    except OSError as error:
        raise OSError(
            f"`log-dir` must be a folder that can be made and written; received {str(folder)!r}, "
            f"and {error.filename or folder} gives: {error.strerror}; do `--log-dir logs`."
        ) from error


def prepare_log_folder(folder: pathlib.Path) -> None:
    """Makes the folder; logs of an earlier run move to a new folder `earlier-1`, `earlier-2`, ...

    All of them move, also those of more ranks than the new run has: what is left in the folder
    itself is of one run.

    Example:
        >>> import tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "logs")
        >>> prepare_log_folder(folder)
        >>> written = log_path(folder, rank=0).write_text("the first run")
        >>> prepare_log_folder(folder)
        >>> [path.relative_to(folder).as_posix() for path in folder.rglob("*.log")]
        ['earlier-1/rank-0.log']
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob("rank-*.log"))
    if not earlier:
        return
    for number in itertools.count(1):
        kept = folder / f"earlier-{number}"
        try:
            kept.mkdir()
        except FileExistsError:
            continue
        for path in earlier:
            path.rename(kept / path.name)
        return
