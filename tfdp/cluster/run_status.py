"""How a strategy tells `tfdp run` that it was made.

`tfdp run` gives all its ranks one folder in the environment variable `TFDP_RUN_STATUS`. A rank's
strategy leaves an empty file there; a rank without one has trained alone, and the launcher says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping

STATUS_VARIABLE = "TFDP_RUN_STATUS"


def mark_strategy_made(environ: Mapping[str, str] = os.environ) -> None:
    """Leaves word that this rank has a strategy; does nothing outside `tfdp run`.

    The rank is the task's index in `TF_CONFIG`. It may be called more than once.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> task = '{"task": {"type": "worker", "index": 1}}'
        >>> mark_strategy_made({"TFDP_RUN_STATUS": folder.name, "TF_CONFIG": task})
        >>> ranks_without_strategy(folder.name, world_size=3)
        [0, 2]
    """
    folder = environ.get(STATUS_VARIABLE)
    if not folder:
        return
    try:
        rank = int(json.loads(environ.get("TF_CONFIG", ""))["task"]["index"])
    except (KeyError, TypeError, ValueError):
        return  # a script that changed TF_CONFIG is no rank of this run
    with contextlib.suppress(OSError):  # the launcher is gone
        _mark(folder, rank).touch()


def ranks_without_strategy(folder: str, world_size: int) -> list[int]:
    """The ranks that left no word in the folder."""
    return [rank for rank in range(world_size) if not _mark(folder, rank).exists()]


def _mark(folder: str, rank: int) -> pathlib.Path:
    return pathlib.Path(folder, f"rank-{rank}")
