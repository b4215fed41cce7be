"""The hooks of Keras' loading: all ranks load rank 0's file, which the others need not see."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import tensorflow as tf

from tfdp.base.atomic_files import temporary_folder
from tfdp.base.hooks import hook
from tfdp.communication.replicas import ProcessGroup, is_of_tfdp, processes_of
from tfdp.keras._keras import legacy_h5_format, saving_lib, strategy_of_model
from tfdp.keras.saving import under_way

_SUBJECT = "a file to load"
_SHARDED = ".weights.json"


@hook(keras.Model, "load_weights")
@hook(keras.saving, "load_weights")
@hook(saving_lib, "load_weights_only")
def load_weights(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Loads the weights in rank 0's file on all ranks."""
    with _of_rank_0(_strategy_of(model), filepath) as path:
        return original(model, path, *args, **kwargs)


@hook(legacy_h5_format, "load_weights_from_hdf5_group")
@hook(legacy_h5_format, "load_weights_from_hdf5_group_by_name")
def load_weights_from_group(
    original: Callable[..., Any], group: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Loads the weights in rank 0's file on all ranks, where the file is open already."""
    with _of_rank_0(_strategy_of(model), group.file.filename) as path:
        if path == group.file.filename:
            return original(group, model, *args, **kwargs)
        with h5py.File(path, "r") as file:
            return original(file[group.name], model, *args, **kwargs)


# A script that says `from keras.models import load_model` before the first strategy keeps Keras'
# own function, which calls those of `saving_lib` and `legacy_h5_format` by name.
@hook(keras.models, "load_model")
@hook(keras.saving, "load_model")
@hook(saving_lib, "load_model")
@hook(legacy_h5_format, "load_model_from_hdf5")
def load_model(original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Loads the model in rank 0's file on all ranks, within a strategy's scope."""
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    with _of_rank_0(strategy, filepath) as path:
        return original(path, *args, **kwargs)


@contextlib.contextmanager
def _of_rank_0(strategy: Any, filepath: Any) -> Iterator[Any]:
    """Yields the path of a copy of rank 0's file; in one process, the path itself.

    What is no path of this file system is loaded by each process for itself. What is loaded within
    the context has been sent.
    """
    is_path = isinstance(filepath, (str, os.PathLike)) and "://" not in os.fspath(filepath)
    if under_way.is_loading() or not is_of_tfdp(strategy):
        yield filepath
        return
    processes = processes_of(strategy)
    if processes.world_size == 1 or not is_path:
        with under_way.loading():
            yield filepath
        return
    path = pathlib.Path(filepath).absolute()
    # 1. Rank 0 reads all files, before it says anything.
    contents: dict[str, bytes] = {}
    said: Any = None
    if processes.rank == 0:
        try:
            contents = {name: file.read_bytes() for name, file in _files(path).items()}
            said = {"name": path.name, "files": list(contents), "error": None}
        except OSError as error:
            said = {"name": path.name, "files": [], "error": str(error)}
    # 2. All hear of the same files, or raise the same error.
    said = processes.from_first(_SUBJECT, said).value
    _check(processes, said, path)
    # 3. All load copies of the bytes that rank 0 has read.
    with temporary_folder() as folder, under_way.loading():
        for name in said["files"]:
            copy = pathlib.Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            post = processes.from_first(_SUBJECT, name, contents.get(name, b""))
            copy.write_bytes(post.payload)
        yield os.path.join(folder, said["name"])


def _strategy_of(model: Any) -> Any:
    return strategy_of_model(model) if isinstance(model, keras.Model) else None


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


def _check(processes: ProcessGroup, said: Any, path: pathlib.Path) -> None:
    if said["error"] is not None:
        raise OSError(
            f"{processes.said_by}`filepath` must be a file that rank 0 can read, from which all "
            f"ranks get it; received {os.fspath(path)!r}, and on rank 0's host that gives: "
            f"{said['error']}; mend that, or give another file."
        )
    if not said["files"]:
        raise FileNotFoundError(
            f"{processes.said_by}`filepath` must be a file that rank 0 sees, from which all ranks "
            f"get it; received {os.fspath(path)!r}, and on rank 0's host there is none; put it "
            "there, or give its path on that host."
        )
