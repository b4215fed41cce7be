"""Files in a cluster: rank 0 writes them, whole or not at all, and the others wait."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter._keras import legacy_h5_format, saving_lib
from tfdp.keras_adapter.across_processes import cluster_of
from tfdp.keras_adapter.hooks import hook


@hook(saving_lib, "save_model")
def save_model(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """A `.keras` file, or a folder with `zipped=False`."""
    return _written(lambda path: original(model, path, *args, **kwargs), model, filepath)


@hook(saving_lib, "save_weights_only")
def save_weights_only(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """A `.weights.h5` file, or several with `max_shard_size`."""
    return _written(lambda path: original(model, path, *args, **kwargs), model, filepath)


@hook(legacy_h5_format, "save_model_to_hdf5")
def save_model_to_hdf5(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """An `.h5` file."""
    return _written(lambda path: original(model, path, *args, **kwargs), model, filepath)


@hook(keras.Model, "export")
def export(original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kw: Any) -> Any:
    """A folder, or a file, for serving."""
    return _written(lambda path: original(self, path, *args, **kw), self, filepath)


def _written(write: Callable[[Any], Any], model: Any, filepath: Any) -> Any:
    strategy: Any = getattr(model, "_distribute_strategy", None)
    processes = cluster_of(strategy)
    if processes is None or not isinstance(filepath, (str, os.PathLike)):
        return write(filepath)
    # Sums over replicas are read by all ranks together, before rank 0 writes alone.
    with strategy.extended.sums_read_once(_summed_variables(model)):
        failed = None
        processes.board.barrier(f"the saving of {os.path.basename(filepath)}")
        if processes.rank == 0:
            with strategy.extended.made_alone():
                failed = _attempt(lambda: _atomically(write, os.fspath(filepath)))
        reason = processes.board.from_first("a file", None if failed is None else str(failed)).value
    if failed is not None:
        raise failed
    if reason is not None:
        raise OSError(f"Rank {processes.rank}: rank 0 could not write {filepath}: {reason}")
    return None


def _summed_variables(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *getattr(optimizer, "variables", [])]
    summed = tf.VariableSynchronization.ON_READ
    return [v.value for v in variables if v.value.synchronization == summed]


def _attempt(write: Callable[[], Any]) -> Exception | None:
    try:
        write()
    except Exception as error:  # whatever it is, the other ranks must not wait for it
        return error
    return None


def _atomically(write: Callable[[Any], Any], path: str) -> None:
    """Writes a file beside `path` and renames it; a folder is written where it will stay."""
    folder, name = os.path.split(path)
    if tf.io.gfile.isdir(path) or not os.path.splitext(name)[1]:
        write(path)
        return
    part = os.path.join(folder, f".part-{os.getpid()}-{name}")
    try:
        write(part)
        if tf.io.gfile.exists(part):
            tf.io.gfile.rename(part, path, overwrite=True)
        else:
            # Several shards, named after the path: no single file to rename.
            write(path)
    finally:
        for left in tf.io.gfile.glob(os.path.join(folder, f".part-{os.getpid()}-*")):
            tf.io.gfile.remove(left)


# ---- callbacks


@hook(keras.callbacks.CSVLogger, "on_train_begin")
def csv_logger(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """The other ranks' rows go nowhere."""
    processes = cluster_of(self.model.distribute_strategy)
    if processes is not None and processes.rank != 0:
        self.filename = os.devnull
    return original(self, logs)


@hook(keras.callbacks.TensorBoard, "set_model")
def tensorboard(original: Callable[..., Any], self: Any, model: Any) -> Any:
    """The other ranks' events go into a folder that is deleted when they end."""
    processes = cluster_of(model.distribute_strategy)
    if processes is not None and processes.rank != 0:
        self._tfdp_folder = tempfile.TemporaryDirectory(prefix="tfdp-tensorboard-")
        self.log_dir = self._tfdp_folder.name
    return original(self, model)


_Backup = keras.callbacks.BackupAndRestore


@hook(_Backup, "on_train_begin")
def restore(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """All ranks restore what rank 0 finds, also where they do not see its folder."""
    processes = cluster_of(self.model.distribute_strategy)
    if processes is None:
        return original(self, logs)
    names = (
        "_weights_path",
        "_training_metadata_path",
        "_prev_weights_path",
        "_prev_training_metadata_path",
    )
    if processes.rank == 0:
        for name in names:
            path = getattr(self, name)
            found = tf.io.gfile.exists(path)
            content = tf.io.gfile.GFile(path, "rb").read() if found else b""
            processes.board.from_first("the backup to restore", found, content)
        return original(self, logs)
    self._tfdp_folder = tempfile.TemporaryDirectory(prefix="tfdp-backup-")
    self.backup_dir = os.path.join(self._tfdp_folder.name, "backup")
    os.mkdir(self.backup_dir)
    for name in names:
        path = os.path.join(self.backup_dir, os.path.basename(getattr(self, name)))
        setattr(self, name, path)
        post = processes.board.from_first("the backup to restore")
        if post.value:
            pathlib.Path(path).write_bytes(post.payload)
    return original(self, logs)


@hook(_Backup, "_save_model")
def back_up(original: Callable[..., Any], self: Any) -> Any:
    """The epoch's number is replaced at once, after the weights."""
    if cluster_of(self.model.distribute_strategy) is None:
        return original(self)
    path: str = self._training_metadata_path
    part = f"{path}.part"
    if tf.io.gfile.exists(path):
        tf.io.gfile.copy(path, part, overwrite=True)
    self._training_metadata_path = part
    try:
        original(self)
        tf.io.gfile.rename(part, path, overwrite=True)
    finally:
        self._training_metadata_path = path
    return None
