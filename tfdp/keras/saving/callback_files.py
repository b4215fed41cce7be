"""The hooks of callbacks that write files: `BackupAndRestore`, `CSVLogger` and `TensorBoard`.

Only rank 0's files are kept. A backup's weights and epoch change together; all restore rank 0's.
"""

import contextlib
import json
import os
import pathlib
import shutil
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.atomic_files import temporary_folder
from tfdp.base.hooks import hook
from tfdp.communication.replicas import is_of_tfdp, processes_of
from tfdp.keras._keras import (
    batch_of_backup,
    epoch_of_backup,
    metadata_path,
    metadata_path_before,
    weights_path,
    weights_path_before,
)
from tfdp.keras.saving import under_way
from tfdp.keras.saving.model_files import on_rank_0, replaced

_Backup = keras.callbacks.BackupAndRestore

_PATHS = (weights_path, metadata_path, weights_path_before, metadata_path_before)


@hook(_Backup, "on_train_begin")
def restore(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """Restores on all ranks the backup that rank 0 finds, which it sends to the others.

    So the others need not see its folder.
    """
    processes = processes_of(self.model.distribute_strategy)
    if processes.world_size == 1:  # the backup need not be read to be sent
        return original(self, logs)
    if processes.rank == 0:
        for kept in _PATHS:
            path = kept(self)
            found = tf.io.gfile.exists(path)
            content = tf.io.gfile.GFile(path, "rb").read() if found else b""
            processes.from_first("the backup to restore", found, content)
        return original(self, logs)
    given = os.fspath(self.backup_dir)
    with temporary_folder() as folder:
        # The folder is gone when training has begun: this rank neither writes nor deletes a backup.
        self.backup_dir = folder
        for kept in _PATHS:
            path = os.path.join(folder, os.path.basename(kept(self)))
            kept.set(self, path)
            post = processes.from_first("the backup to restore")
            if post.value:
                pathlib.Path(path).write_bytes(post.payload)
        try:
            return original(self, logs)
        except OSError as error:  # the user knows the folder that was given
            raise OSError(str(error).replace(folder, given)) from error


@hook(_Backup, "_load_model")
def load(original: Callable[..., Any], self: Any) -> Any:
    """Loads a backup; where it is not whole, raises OSError with the file and what to do."""
    if not is_of_tfdp(self.model.distribute_strategy):
        return original(self)
    weights, metadata = weights_path(self), metadata_path(self)
    found = [tf.io.gfile.exists(path) for path in (weights, metadata)]
    if any(found) and not all(found):
        raise _unusable(self, weights if found[1] else metadata, "it is missing")
    if all(found):
        try:
            int(json.loads(tf.io.gfile.GFile(metadata).read())["epoch"])
        except (ValueError, TypeError, KeyError) as error:
            raise _unusable(self, metadata, f"{type(error).__name__}: {error}") from error
    try:
        with under_way.loading():  # `restore` has brought rank 0's
            return original(self)
    except OSError as error:
        raise _unusable(self, weights, str(error)) from error


@hook(_Backup, "_save_model")
def back_up(original: Callable[..., Any], self: Any) -> Any:
    """Writes a backup whose weights and epoch change together, on rank 0.

    The backup before is copied first.
    """
    if not is_of_tfdp(self.model.distribute_strategy):
        return original(self)
    remote = "://" in os.fspath(self.backup_dir)

    def act() -> None:
        if remote:
            replaced(lambda _: original(self), weights_path(self))
            return
        if all(map(os.path.exists, (weights_path(self), metadata_path(self)))):
            # A kill in the instant of replacing may leave no other backup: Keras restores this one.
            replaced(lambda path: _keep(self, path), weights_path_before(self))
        replaced(lambda path: _write(self, path), weights_path(self), makes_folder=True)
        if not self.double_checkpoint:
            for path in (weights_path_before(self), metadata_path_before(self)):
                pathlib.Path(path).unlink(missing_ok=True)

    on_rank_0(self.model, weights_path(self), act)
    return None


@hook(keras.callbacks.CSVLogger, "on_train_begin")
def csv_logger(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """Lets the ranks other than 0 write their rows to the null device."""
    if processes_of(self.model.distribute_strategy).cluster_rank != 0:
        self.filename = os.devnull
    return original(self, logs)


@hook(keras.callbacks.TensorBoard, "set_model")
def tensorboard(original: Callable[..., Any], self: Any, model: Any) -> Any:
    """Lets the ranks other than 0 write their events to a folder that is deleted at their end."""
    if processes_of(model.distribute_strategy).cluster_rank != 0:
        kept = contextlib.ExitStack()
        self.log_dir = kept.enter_context(temporary_folder())
        weakref.finalize(self, kept.close)
    return original(self, model)


def _keep(callback: Any, path: str) -> None:
    metadata = _beside(path, metadata_path_before(callback))
    for old, new in ((weights_path(callback), path), (metadata_path(callback), metadata)):
        try:
            os.link(old, new)
        except OSError:  # a file system without links
            shutil.copyfile(old, new)


def _write(callback: Any, path: str) -> None:
    callback.model.save_weights(path)
    state = {"epoch": epoch_of_backup(callback), "batch": batch_of_backup(callback)}
    _beside(path, metadata_path(callback)).write_text(json.dumps(state))


def _beside(path: str, name: str) -> pathlib.Path:
    return pathlib.Path(path).with_name(os.path.basename(name))


def _unusable(callback: Any, path: str, reason: str) -> OSError:
    rank = processes_of(callback.model.distribute_strategy).said_by
    folder = os.fspath(callback.backup_dir)
    return OSError(
        f"{rank}a backup must be whole, but {path!r} is not: {reason}. Put a whole copy of both of "
        f"its files there, or delete the folder {folder!r} to begin anew. `double_checkpoint=True` "
        "keeps the backup before as well."
    )
