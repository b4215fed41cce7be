"""One log per rank, in a folder."""

from __future__ import annotations

import itertools
import pathlib


def log_path(folder: pathlib.Path, rank: int) -> pathlib.Path:
    """Where the output of a rank goes."""
    return folder / f"rank-{rank}.log"


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
