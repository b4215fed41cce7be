"""The writing of HDF5 files through Python, so that a full disk raises an error.

HDF5 cannot close a file whose last bytes find no room. It keeps the file half freed, and the
process ends with SIGSEGV when it leaves the library. So no failure is reported to HDF5, and the
first one is raised afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import h5py

from tfdp.base.hooks import hook
from tfdp.keras._keras import saving_lib

_written: ContextVar[list[_H5File] | None] = ContextVar("written", default=None)


@contextlib.contextmanager
def failing_at_the_end() -> Iterator[None]:
    """Raises at the end of the context the first failure to write a file that was opened within.

    Raises:
      OSError: The failure itself, even if HDF5 raised another error.
    """
    files: list[_H5File] = []
    token = _written.set(files)
    try:
        yield
    finally:
        _written.reset(token)
        failures = [file.failure for file in files if file.failure is not None]
        if failures:
            raise failures[0]


def opened(path: str | os.PathLike[str], mode: str = "w") -> h5py.File:
    """Opens an HDF5 file to write; within `failing_at_the_end`, with its failures kept."""
    files = _written.get()
    if files is None:
        return h5py.File(path, mode)
    files.append(_H5File(path, {"w": "w+", "a": "r+"}[mode]))
    return h5py.File(files[-1], mode)


@hook(saving_lib.H5IOStore, "_get_h5_file")
def get_h5_file(
    original: Callable[..., Any], self: Any, path_or_io: Any, mode: str | None = None
) -> Any:
    """Opens by `opened` the files that are written within `failing_at_the_end`."""
    writes = (mode or self.mode) != "r" and not self.archive
    if _written.get() is None or not writes or not isinstance(path_or_io, pathlib.Path):
        return original(self, path_or_io, mode)
    return opened(path_or_io, mode or self.mode)


class _H5File(io.FileIO):
    """A file that keeps its first failure, and goes on as if the missing bytes were zeros."""

    failure: OSError | None = None

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
            self._remember(error)
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
            self._remember(error)
            return self.tell() if size is None else size

    def _remember(self, error: OSError) -> None:
        self.failure = self.failure or error
