"""The hooks of Keras' loading: all ranks load rank 0's file, which the others need not see."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdp.files import temporary_folder
from tfdp.hooks import hook
from tfdp.keras_adapter._keras import strategy_of_model
from tfdp.replicas import ProcessGroup, processes_of, replicas_of

_SUBJECT = "a file to load"
_SHARDED = ".weights.json"

# Whether each process loads a file of its own: one that rank 0 has sent already.
_alone: ContextVar[bool] = ContextVar("alone", default=False)


@hook(keras.Model, "load_weights")
def load_weights(
    original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Loads the weights in rank 0's file on all ranks."""
    with _of_rank_0(strategy_of_model(self), filepath) as path:
        return original(self, path, *args, **kwargs)


@hook(keras.models, "load_model")
@hook(keras.saving, "load_model")
def load_model(original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Loads the model in rank 0's file on all ranks, within a strategy's scope."""
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    with _of_rank_0(strategy, filepath) as path:
        return original(path, *args, **kwargs)


@contextlib.contextmanager
def each_its_own() -> Iterator[None]:
    """Lets each process load its own file, within the context."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


@contextlib.contextmanager
def _of_rank_0(strategy: Any, filepath: Any) -> Iterator[Any]:
    """Yields the path of a copy of rank 0's file; on rank 0, and in one process, the path itself.

    What is no path of this file system is loaded by each process for itself.
    """
    ours = None if _alone.get() else replicas_of(strategy)
    is_path = isinstance(filepath, (str, os.PathLike)) and "://" not in os.fspath(filepath)
    if ours is None or ours.processes.world_size == 1 or not is_path:
        yield filepath
        return
    processes = processes_of(strategy)
    path = pathlib.Path(filepath).absolute()
    if processes.rank == 0:
        files = _files(path)
        processes.from_first(_SUBJECT, {"name": path.name, "files": list(files)})
        for name, file in files.items():
            processes.from_first(_SUBJECT, name, file.read_bytes())
        _check(processes, bool(files), path)
        yield filepath
        return
    found: Any = processes.from_first(_SUBJECT).value
    _check(processes, bool(found["files"]), path)
    with temporary_folder() as folder:
        for name in found["files"]:
            copy = pathlib.Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(processes.from_first(_SUBJECT).payload)
        yield os.path.join(folder, found["name"])


def _files(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the files that are loaded with `path`, by their names beside it; none if none is."""
    if path.is_dir():
        return {
            file.relative_to(path.parent).as_posix(): file
            for file in path.rglob("*")
            if file.is_file()
        }
    if not path.is_file():
        return {}
    shards = f"{path.name.removesuffix(_SHARDED)}_*.weights.h5"
    beside = path.parent.glob(shards) if path.name.endswith(_SHARDED) else ()
    return {file.name: file for file in (path, *beside)}


def _check(processes: ProcessGroup, there: bool, path: pathlib.Path) -> None:
    if not there:
        raise FileNotFoundError(
            f"{processes.said_by}`filepath` must be a file that rank 0 sees, from which all ranks "
            f"get it; received {os.fspath(path)!r}, and on rank 0's host there is none; put it "
            "there, or give its path on that host."
        )
