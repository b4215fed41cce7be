"""The folder of a training's checkpoints: their names, the newest good one, and how many stay."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any

import numpy as np

from tfdp.checkpoint import archive
from tfdp.checkpoint.remote_path import AnyPath, as_path
from tfdp.replicas import ProcessGroup

_NAME = re.compile(r"step-(\d+)\.checkpoint")


def path_of(folder: AnyPath, step: int) -> AnyPath:
    """Returns the file of the checkpoint after so many steps.

    >>> import pathlib
    >>> path_of(pathlib.Path("run"), 12).as_posix()
    'run/step-00000012.checkpoint'
    """
    return folder / f"step-{step:08}.checkpoint"


def newest_first(folder: AnyPath) -> list[AnyPath]:
    """Returns the files of checkpoints, the one after the most steps first."""
    if not folder.is_dir():
        return []
    found = {path: _NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_file()}
    steps = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def remove_old(folder: AnyPath, keep: int, newest: AnyPath) -> None:
    """Removes all checkpoints but the newest one, which was written now, and those before it.

    Files of more steps could not be read when the training went on from an older one: they are
    renamed, to `step-00000120.checkpoint.damaged`.

    Args:
      folder: The folder.
      keep: How many checkpoints stay.
      newest: The newest one.

    Raises:
      OSError: A file cannot be removed or renamed.
    """
    paths = newest_first(folder)
    at = paths.index(newest)
    for path in paths[:at]:
        path.rename(str(path.with_name(f"{path.name}.damaged")))
    for path in paths[at + keep :]:
        path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Found:
    """The newest whole checkpoint of a folder.

    Attributes:
      path: The file; None if there is none.
      content: What the file holds.
      manifest: The manifest in it.
      arrays: The arrays in it.
      passed_over: For each newer file that is not whole its name and what is wrong with it.
    """

    path: AnyPath | None = None
    content: bytes = b""
    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    passed_over: list[str] = dataclasses.field(default_factory=list)


def newest_good(folder: AnyPath) -> Found:
    """Returns the newest whole checkpoint of a folder.

    Raises:
      OSError: No file is whole, and one could not be read, which may be otherwise the next time.
    """
    passed_over: list[str] = []
    unread: OSError | None = None
    for path in newest_first(folder):
        try:
            content = path.read_bytes()
            return Found(path, content, *archive.read(content), passed_over)
        except archive.DamagedCheckpointError as error:
            passed_over.append(f"{path.name}: {error}")
        except OSError as error:
            passed_over.append(f"{path.name}: {error}")
            unread = error
    if unread is not None:
        raise unread
    return Found(passed_over=passed_over)


def newest_good_of_first(
    folder: AnyPath, processes: ProcessGroup
) -> tuple[AnyPath | None, dict[str, Any], dict[str, np.ndarray]]:
    """Returns what rank 0 finds in its folder, on all ranks; the log of rank 0 says what is wrong.

    All ranks must call it.

    Returns:
      The file, None if there is none; the manifest; the arrays.
    """
    subject = "the checkpoint to go on from"
    if processes.rank != 0:
        post = processes.from_first(subject)
        if not post.value:
            return None, {}, {}
        return as_path(post.value), *archive.read(post.payload)
    found = newest_good(folder)
    for text in found.passed_over:
        logging.getLogger("tfdp").warning("A checkpoint was passed over: %s.", text)
    processes.from_first(subject, str(found.path or ""), found.content)
    return found.path, found.manifest, found.arrays
