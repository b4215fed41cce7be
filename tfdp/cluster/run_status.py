"""The files by which a strategy tells `tfdp run` that it was made.

`tfdp run` gives all its ranks one folder in the environment variable `TFDP_RUN_STATUS`, and each
rank's strategy leaves empty files there. A rank that leaves no file has trained alone, or the
others wait for it in vain. The launcher then says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping

STATUS_VARIABLE = "TFDP_RUN_STATUS"
_BEGUN, _MADE = "begun", "made"


def mark_strategy_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Marks that this rank makes a strategy, and waits for the others to do so.

    Does nothing outside `tfdp run`. The rank is the task's index in `TF_CONFIG`.
    """
    _leave_word(environ, _BEGUN)


def mark_strategy_made(environ: Mapping[str, str] = os.environ) -> None:
    """Marks that this rank's strategy is made; it may be called more than once.

    Does nothing outside `tfdp run`, like `mark_strategy_begun`.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> task = '{"task": {"type": "worker", "index": 1}}'
    >>> mark_strategy_made({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
    >>> ranks_without_strategy(folder.name, world_size=3)
    [0, 2]
    """
    _leave_word(environ, _MADE)


def ranks_without_strategy(folder: str, world_size: int) -> list[int]:
    """Returns the ranks that made no strategy."""
    return [rank for rank in range(world_size) if not _mark(folder, rank, _MADE).exists()]


def ranks_that_wait(folder: str, world_size: int) -> list[int]:
    """Returns the ranks that wait in making their first strategy, which needs all ranks to come."""
    without = ranks_without_strategy(folder, world_size)
    return [rank for rank in without if _mark(folder, rank, _BEGUN).exists()]


def _leave_word(environ: Mapping[str, str], word: str) -> None:
    folder = environ.get(STATUS_VARIABLE)
    if not folder:
        return
    try:
        rank = int(json.loads(environ.get("TF_CONFIG", ""))["task"]["index"])
    except (KeyError, TypeError, ValueError):
        return  # a script that changed TF_CONFIG is no rank of this run
    with contextlib.suppress(OSError):  # the launcher is gone
        _mark(folder, rank, word).touch()


def _mark(folder: str, rank: int, word: str) -> pathlib.Path:
    return pathlib.Path(folder, f"rank-{rank}-{word}")
