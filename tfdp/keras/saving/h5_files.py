"""The writing of HDF5 files through Python, so that a full disk raises an error.

HDF5 cannot close a file whose last bytes find no room. It keeps the file half freed, and the
process ends with SIGSEGV when it leaves the library. So no failure is reported to HDF5, and the
first one is raised afterwards.
"""

import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import h5py

from tfdp.base.hooks import hook
from tfdp.keras._keras import saving_lib
from tfdp.keras.saving import under_way


def opened(path: str | os.PathLike[str], mode: str = "w") -> h5py.File:
    """Opens an HDF5 file to write; in a save that is under way, with its failures kept."""
    save = under_way.save()
    if save is None:
        return h5py.File(path, mode)
    file = _H5File(path, {"w": "w+", "a": "r+"}[mode], save)
    return h5py.File(file, mode)


@hook(saving_lib.H5IOStore, "_get_h5_file")
def get_h5_file(
    original: Callable[..., Any], self: Any, path_or_io: Any, mode: str | None = None
) -> Any:
    """Opens by `opened` the files that a save writes which is under way."""
    mode = mode or self.mode
    if mode == "r" or self.archive or not isinstance(path_or_io, pathlib.Path):
        return original(self, path_or_io, mode)
    return opened(path_or_io, mode)


class _H5File(io.FileIO):
    """A file that hands its failures to the save, and goes on as if missing bytes were zeros."""

    def __init__(self, path: str | os.PathLike[str], mode: str, save: under_way.Save) -> None:
        super().__init__(path, mode)
        self._failures = save.failures

    def __repr__(self) -> str:
        return os.fspath(self.name)  # h5py uses it as the file's name

    def write(self, data: Any) -> int:
        data = memoryview(data).cast("B")
        start = self.tell()
        done = 0
        try:
            while done < len(data):
                done += super().write(data[done:])
        except OSError as error:
            self._failures.append(error)
            self.seek(start + len(data))
        return len(data)

    def readinto(self, buffer: Any) -> int:
        buffer = memoryview(buffer).cast("B")
        done = super().readinto(buffer) or 0
        buffer[done:] = bytes(len(buffer) - done)
        return len(buffer)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._failures.append(error)
            return self.tell() if size is None else size
