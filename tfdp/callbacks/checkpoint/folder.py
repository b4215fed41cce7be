"""The folder of a training's checkpoints: their names, the newest good one, and how many stay."""

import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfdp.callbacks.checkpoint import archive
from tfdp.callbacks.checkpoint.remote_path import AnyPath, as_path
from tfdp.communication.replicas import ProcessGroup

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
      manifest: The manifest in it.
      arrays: The arrays in it, which are read from the open file.
      passed_over: For each newer file that is not whole its name and what is wrong with it.
    """

    path: AnyPath | None = None
    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
    arrays: archive.Arrays | None = None
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
            return Found(path, *archive.read(path), passed_over)
        except archive.DamagedCheckpointError as error:
            passed_over.append(f"{path.name}: {error}")
        except OSError as error:
            passed_over.append(f"{path.name}: {error}")
            unread = error
    if unread is not None:
        raise unread
    return Found(passed_over=passed_over)


class ArraysOfFirst(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint that rank 0 reads, for all ranks.

    All ranks must ask for the same ones in the same order. Rank 0 reads and sends one when all have
    asked for it, so that there is one at a time in a rank's memory, and on its way.

    Args:
      processes: The processes.
      described: The dtypes and shapes by name.
      own: On rank 0 the arrays in the file; elsewhere None.

    Attributes:
      stand_ins: Arrays of these dtypes and shapes without content, which nobody has to send.
    """

    def __init__(
        self, processes: ProcessGroup, described: Mapping[str, Any], own: archive.Arrays | None
    ) -> None:
        self._processes, self._described, self._own = processes, described, own
        self.stand_ins = archive.stand_ins(described)

    def __getitem__(self, name: str) -> np.ndarray:
        if self._own is not None and self._processes.world_size == 1:
            return self._own[name]
        subject = f"{name} of the checkpoint"
        self._processes.all_gather(f"who asks for {subject}")
        if self._own is None:
            content = self._processes.from_first(subject).payload
            return archive.array_of(content, self._described[name])
        array = self._own[name]
        self._processes.from_first(subject, payload=bytes(archive.content_of(array)))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


def newest_good_of_first(
    folder: AnyPath, processes: ProcessGroup
) -> tuple[AnyPath, dict[str, Any], ArraysOfFirst] | None:
    """Returns what rank 0 finds in its folder, on all ranks; the log of rank 0 says what is wrong.

    All ranks must call it.

    Returns:
      The file, the manifest and the arrays; None if there is none.
    """
    found = newest_good(folder) if processes.rank == 0 else Found()
    for text in found.passed_over:
        logging.getLogger("tfdp").warning("A checkpoint was passed over: %s.", text)
    described = None if found.arrays is None else found.arrays.described
    told = processes.from_first(
        "the checkpoint to go on from", [str(found.path or ""), found.manifest, described]
    )
    path, manifest, described = told.value
    if not path:
        return None
    return as_path(path), manifest, ArraysOfFirst(processes, described, found.arrays)
