"""The thread that writes checkpoints beside the training, one after the other."""

from __future__ import annotations

import concurrent.futures
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdp.checkpoint import archive, folder


class Writer:
    """Writes checkpoints into a folder, in a thread of its own.

    A checkpoint that cannot be written is said in the log, and the training goes on; the last good
    one stays.

    Args:
      into: The folder, which the first checkpoint makes.
      keep: How many checkpoints stay.
    """

    def __init__(self, into: pathlib.Path, keep: int) -> None:
        self._folder = into
        self._keep = keep
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._last: concurrent.futures.Future[None] | None = None

    def write(
        self, step: int, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Begins to write the checkpoint after so many steps, when the one before is written."""
        self.wait()
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(1, "tfdp-checkpoint")
        self._last = self._threads.submit(self._write, step, manifest, arrays)

    def wait(self) -> None:
        """Waits until the last checkpoint is written."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def _write(
        self, step: int, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        path = folder.path_of(self._folder, step)
        log = logging.getLogger("tfdp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            archive.write(path, manifest, arrays)
        except Exception as error:  # whatever it is, the training goes on
            log.error(
                "The checkpoint %s could not be written: %s. The training goes on; the last good "
                "checkpoint stays. Free space there, or allow to write.",
                path,
                error,
            )
            return
        try:
            folder.remove_old(self._folder, self._keep, path)
        except OSError as error:
            log.error("Checkpoints older than %s could not be removed: %s.", path, error)
