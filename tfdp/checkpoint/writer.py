"""The thread that writes checkpoints beside the training, one after the other."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdp.checkpoint import archive, folder
from tfdp.checkpoint.remote_path import AnyPath


class Writer:
    """Writes checkpoints into a folder, in a thread of its own.

    Where a checkpoint cannot be written, the training goes on, and the last good one stays. The log
    says so once, and again when one is written.

    Args:
      into: The folder, which the first checkpoint makes.
      keep: How many checkpoints stay.
    """

    def __init__(self, into: AnyPath, keep: int) -> None:
        self._folder = into
        self._keep = keep
        self._lost = 0  # checkpoints in a row that could not be written
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
            self._lost += 1
            log.log(
                logging.ERROR if self._lost == 1 else logging.DEBUG,
                "The checkpoint %s could not be written: %s. The training goes on; the last good "
                "checkpoint stays. Free space there, or allow to write. This is said once, until "
                "a checkpoint is written again.",
                path,
                error,
            )
            return
        if self._lost:
            log.warning("The checkpoint %s is written, after %d were lost.", path, self._lost)
            self._lost = 0
        try:
            folder.remove_old(self._folder, self._keep, path)
        except OSError as error:
            log.error("Checkpoints older than %s could not be removed: %s.", path, error)
