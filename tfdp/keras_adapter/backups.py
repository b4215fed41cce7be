"""BackupAndRestore: weights and epoch stand there together; in a cluster all restore rank 0's."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.files import temporary_folder
from tfdp.hooks import hook
from tfdp.keras_adapter.saving import on_rank_0, replaced
from tfdp.replicas import processes_of, replicas_of

_Backup = keras.callbacks.BackupAndRestore
_PATHS = (
    "_weights_path",
    "_training_metadata_path",
    "_prev_weights_path",
    "_prev_training_metadata_path",
)


@hook(_Backup, "on_train_begin")
def restore(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """All ranks restore what rank 0 finds, also where they do not see its folder."""
    processes = processes_of(self.model.distribute_strategy)
    if processes.world_size == 1:  # the backup need not be read to be sent
        return original(self, logs)
    if processes.rank == 0:
        for name in _PATHS:
            path = getattr(self, name)
            found = tf.io.gfile.exists(path)
            content = tf.io.gfile.GFile(path, "rb").read() if found else b""
            processes.from_first("the backup to restore", found, content)
        return original(self, logs)
    self._tfdp_backup_dir = self.backup_dir
    with temporary_folder() as folder:
        # It is gone when training has begun; then this rank neither writes nor deletes a backup.
        self.backup_dir = folder
        for name in _PATHS:
            path = os.path.join(folder, os.path.basename(getattr(self, name)))
            setattr(self, name, path)
            post = processes.from_first("the backup to restore")
            if post.value:
                pathlib.Path(path).write_bytes(post.payload)
        return original(self, logs)


@hook(_Backup, "_load_model")
def load(original: Callable[..., Any], self: Any) -> Any:
    """A backup that is not whole is an error that names the file and what to do."""
    if replicas_of(self.model.distribute_strategy) is None:
        return original(self)
    weights, metadata = self._weights_path, self._training_metadata_path
    found = [tf.io.gfile.exists(path) for path in (weights, metadata)]
    if any(found) and not all(found):
        raise _unusable(self, weights if found[1] else metadata, "it is missing")
    if all(found):
        try:
            int(json.loads(tf.io.gfile.GFile(metadata).read())["epoch"])
        except (ValueError, TypeError, KeyError) as error:
            raise _unusable(self, metadata, f"{type(error).__name__}: {error}") from error
    try:
        return original(self)
    except OSError as error:
        raise _unusable(self, weights, str(error)) from error


@hook(_Backup, "_save_model")
def back_up(original: Callable[..., Any], self: Any) -> Any:
    """The epoch's number takes its place with the weights, and what is kept before them."""
    if replicas_of(self.model.distribute_strategy) is None:
        return original(self)
    remote = "://" in os.fspath(self.backup_dir)

    def act() -> None:
        if remote:
            replaced(lambda _: original(self), self._weights_path)
            return
        if all(map(os.path.exists, (self._weights_path, self._training_metadata_path))):
            # Keras restores it where a kill in the instant of replacing leaves no other.
            replaced(lambda path: _keep(self, path), self._prev_weights_path)
        replaced(lambda path: _write(self, path), self._weights_path, makes_folder=True)
        if not self.double_checkpoint:
            for path in (self._prev_weights_path, self._prev_training_metadata_path):
                pathlib.Path(path).unlink(missing_ok=True)

    on_rank_0(self.model, self._weights_path, act)
    return None


def _keep(callback: Any, path: str) -> None:
    metadata = _beside(path, callback._prev_training_metadata_path)
    for old, new in ((callback._weights_path, path), (callback._training_metadata_path, metadata)):
        try:
            os.link(old, new)
        except OSError:  # a file system without links
            shutil.copyfile(old, new)


def _write(callback: Any, path: str) -> None:
    callback.model.save_weights(path)
    state = {"epoch": callback._current_epoch, "batch": callback._last_batch_seen}
    _beside(path, callback._training_metadata_path).write_text(json.dumps(state))


def _beside(path: str, name: str) -> pathlib.Path:
    return pathlib.Path(path).with_name(os.path.basename(name))


def _unusable(callback: Any, path: str, reason: str) -> OSError:
    rank = processes_of(callback.model.distribute_strategy).said_by
    folder = os.fspath(getattr(callback, "_tfdp_backup_dir", callback.backup_dir))
    path = os.path.join(folder, os.path.basename(path))
    return OSError(
        f"{rank}a backup must be whole, but {path!r} is not: {reason}. Put a whole copy of both of "
        f"its files there, or delete the folder {folder!r} to begin anew. `double_checkpoint=True` "
        "keeps the backup before as well."
    )
