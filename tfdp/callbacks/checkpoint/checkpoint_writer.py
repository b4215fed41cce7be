"""The thread that writes checkpoints beside the training, one after the other.

Rank 0 writes, and removes old ones. On the other ranks it sends rank 0 what they hold.
"""

import collections
import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tfdp.callbacks.checkpoint import archive, folder
from tfdp.callbacks.checkpoint.remote_path import AnyPath
from tfdp.errors import CollectiveTimeoutError, RankLostError

_LOST = (RankLostError, CollectiveTimeoutError)
_WITHOUT_A_RANK = (
    "The last good checkpoint stays, and the training goes on from it when all ranks have started "
    "again."
)
_WITHOUT_SPACE = (
    "The training goes on; the last good checkpoint stays. Free space there, or allow to write. "
    "This is said once, until a checkpoint is written again."
)


class CheckpointWriter:
    """Writes checkpoints into a folder, in a thread of its own.

    Where a checkpoint cannot be written, the training goes on, unless a rank was lost that sends a
    part of it, and the last good one stays. The log says so once, and again when one is written.

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
        self, step: int, manifest: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]
    ) -> None:
        """Begins to write the checkpoint after so many steps, when the one before is written.

        Args:
          step: The number of steps.
          manifest: What is known beside the arrays; JSON.
          arrays: Names and arrays; all are taken, also where they cannot be written, for other
            ranks send some.
        """
        self._begin(lambda: self._write(step, manifest, arrays))

    def send(self, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        """Begins to take arrays from what sends them to rank 0, when those before are sent."""
        self._begin(lambda: self._send(arrays))

    def wait(self) -> None:
        """Waits until the last checkpoint is written, or sent."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def _begin(self, act: Callable[[], None]) -> None:
        self.wait()
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(1, "tfdp-checkpoint")
        self._last = self._threads.submit(act)

    def _send(self, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        try:
            _take(arrays)
        except Exception as error:  # rank 0 says what becomes of the checkpoint
            logging.getLogger("tfdp").warning("A checkpoint's part was not sent: %s.", error)

    def _write(
        self, step: int, manifest: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]
    ) -> None:
        path = folder.path_of(self._folder, step)
        arrays = iter(arrays)
        log = logging.getLogger("tfdp")
        try:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                archive.write(path, manifest, arrays)
            finally:
                _take(arrays)
        except Exception as error:  # whatever it is, the training goes on
            self._lost += 1
            log.log(
                logging.ERROR if self._lost == 1 else logging.DEBUG,
                "The checkpoint %s could not be written: %s. %s",
                path,
                str(error).rstrip("."),
                _WITHOUT_A_RANK if isinstance(error, _LOST) else _WITHOUT_SPACE,
            )
            return
        if self._lost:
            log.warning("The checkpoint %s is written, after %d were lost.", path, self._lost)
            self._lost = 0
        try:
            folder.remove_old(self._folder, self._keep, path)
        except OSError as error:
            log.error("Checkpoints older than %s could not be removed: %s.", path, error)


def _take(arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Takes what is left, and lets it go."""
    collections.deque(arrays, maxlen=0)
