"""The hooks of Keras' saving: a file is complete or absent, and rank 0 alone writes it.

HDF5 cannot close a file whose last bytes find no room. It keeps the file half freed, and the
process ends with SIGSEGV when it leaves the library. So HDF5 files are written through Python: no
failure is reported to HDF5, and the first one is raised afterwards.
"""

import contextlib
import errno
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import tensorflow as tf

from tfdp.base.atomic_files import replacing
from tfdp.base.hooks import hook
from tfdp.callbacks.checkpoint.model_variables import parts
from tfdp.communication.replicas import (
    compiler_of,
    is_of_tfdp,
    processes_of,
    replicas_of,
    sharding_of,
)
from tfdp.keras._keras import io_utils, legacy_h5_format, saving_lib, strategy_of_model
from tfdp.keras.divergent_variables import apart_of, check_round_ended
from tfdp.keras.saving import under_way

# Files whose folder must be there.
_IN_FOLDERS = (".keras", "weights.h5", "weights.json")


@hook(saving_lib, "save_model")
@hook(saving_lib, "save_weights_only")
def save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Writes a file, a folder with `zipped=False`, or shards of weights, whole or not at all."""
    makes_folder = not str(filepath).endswith(_IN_FOLDERS)
    return _saved(
        lambda path: original(model, path, *args, **kwargs), model, filepath, makes_folder
    )


@hook(legacy_h5_format, "save_model_to_hdf5")
def save_model_to_hdf5(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    """Writes an `.h5` file whole or not at all."""

    def write(path: Any) -> Any:
        if under_way.save() is None:
            return original(model, path, *args, **kwargs)
        with opened(path) as file:
            return original(model, file, *args, **kwargs)

    return _saved(write, model, filepath, makes_folder=True)


@hook(keras.Model, "export")
def export(original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kw: Any) -> Any:
    """Writes a folder, or a file, for serving, whole or not at all."""
    replicas = replicas_of(getattr(self, "_distribute_strategy", None))

    def write(path: Any) -> Any:
        if replicas is None:
            return original(self, path, *args, **kw)
        check_round_ended(self.variables, "export")
        sharded = [each.value for each in self.variables if sharding_of(each)]
        with replicas.read_after_round(), replicas.held_whole(sharded):
            return original(self, path, *args, **kw)

    return _saved(write, self, filepath, makes_folder=True, with_optimizers=False)


@hook(io_utils, "print_msg")
def print_msg(original: Callable[..., Any], message: Any, *args: Any, **kwargs: Any) -> Any:
    """Names in messages the path that a save will have, in place of the one that it writes to."""
    if (save := under_way.save()) is not None:
        message = message.replace(save.new, save.path)
    return original(message, *args, **kwargs)


@hook(saving_lib, "get_temp_dir")
def get_temp_dir(original: Callable[..., Any]) -> Any:
    """Puts Keras' temporary folder beside the unfinished save, with which it is removed.

    It is removed with the save even after a kill.
    """
    save = under_way.save()
    if save is None or save.new == save.path:
        return original()
    return tempfile.mkdtemp(dir=os.path.dirname(os.path.dirname(save.new)))


def replaced(write: Callable[[Any], Any], path: str, makes_folder: bool = False) -> None:
    """Replaces the file or folder at `path` by a new one, once that is written whole.

    On a remote file system `write` writes to `path` itself, for an upload is whole or not at all.

    Args:
      write: Writes to the path that it is called with, whose last part is that of `path`.
      path: The file or folder to be replaced.
      makes_folder: Whether the folder that holds `path` is made if it does not exist.

    Raises:
      OSError: The file cannot be written; the message says why, and what to do.
    """
    if "://" in path:
        with under_way.saving(path, path):
            write(path)
        return
    folder = os.path.dirname(os.path.realpath(path))
    try:
        if makes_folder:
            os.makedirs(folder, exist_ok=True)
        with replacing(path) as new, under_way.saving(new, path):
            write(new)
    except OSError as error:
        raise _error(
            error.errno,
            f"{path!r} must be written whole, but that failed: {error.strerror or error}. "
            f"Nothing that stood there has changed. {_fix(error.errno, folder)}",
        ) from error


def on_rank_0(model: Any, path: str, act: Callable[[], Any], with_optimizers: bool = True) -> None:
    """Calls `act`, which writes `path` from the model, on rank 0, while the other ranks wait.

    Args:
      model: The model.
      path: The file or folder.
      act: Writes it.
      with_optimizers: Whether it writes the state of optimizers, of which ranks may hold parts.

    Raises:
      OSError: Rank 0 could not write the file; raised on all ranks.
    """
    strategy: Any = strategy_of_model(model)
    processes = processes_of(strategy)
    if processes.world_size == 1:  # an error is raised as it is
        if processes.cluster_rank == 0:
            act()
        return
    with _read_together(strategy, model, with_optimizers):
        failed: Exception | None = None
        processes.barrier(f"the saving of {os.path.basename(path)}")
        if processes.rank == 0:
            try:
                act()
            except Exception as error:  # whatever it is, the other ranks must not wait for it
                failed = error
        reason = None if failed is None else _text(failed)
        reason = processes.from_first("a file", reason).value
    if isinstance(failed, OSError):
        raise _error(failed.errno, f"Rank 0: {_text(failed)}") from failed
    if failed is not None:
        raise failed
    if reason is not None:
        raise OSError(f"{processes.said_by}rank 0 could not write {path!r}: {reason}")


def _saved(
    write: Callable[[Any], Any],
    model: Any,
    filepath: Any,
    makes_folder: bool = False,
    with_optimizers: bool = True,
) -> Any:
    ours = is_of_tfdp(getattr(model, "_distribute_strategy", None))
    if not ours or under_way.save() is not None or not isinstance(filepath, (str, os.PathLike)):
        return write(filepath)
    path = str(os.fspath(filepath))
    act = lambda: replaced(write, path, makes_folder)  # noqa: E731
    return on_rank_0(model, path, act, with_optimizers)


@contextlib.contextmanager
def _read_together(strategy: Any, model: Any, with_optimizers: bool) -> Iterator[None]:
    """Has all ranks read together what rank 0 then reads alone, within the context.

    Such are sums over replicas, and values of which ranks hold parts.
    """
    compiler, replicas = compiler_of(strategy), replicas_of(strategy)
    with contextlib.ExitStack() as reading:
        if compiler is not None:
            values = [each.value for each in _variables(model, with_optimizers)]
            reading.enter_context(compiler.at_home(values))
        if replicas is not None:
            summed = _summed_variables(model, with_optimizers)
            reading.enter_context(replicas.sums_read_once(summed))
            reading.enter_context(replicas.made_alone())
        yield


def _variables(model: Any, with_optimizers: bool) -> list[Any]:
    """Returns the variables of a model, and of its optimizers, of which it may have several."""
    variables = {id(variable): variable for variable in model.variables}
    if with_optimizers:
        optimizers = [each for each in parts(model) if isinstance(each, keras.optimizers.Optimizer)]
        variables |= {id(variable): variable for one in optimizers for variable in one.variables}
    return list(variables.values())


def _summed_variables(model: Any, with_optimizers: bool) -> list[Any]:
    """Returns what all replicas must read together."""
    summed = tf.VariableSynchronization.ON_READ
    return [
        v.value
        for v in _variables(model, with_optimizers)
        if v.value.synchronization == summed or apart_of(v) or sharding_of(v)
    ]


def _error(number: int | None, text: str) -> OSError:
    return OSError(text) if number is None else OSError(number, text)


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _fix(number: int | None, folder: str) -> str:
    if not os.path.isdir(folder):
        return f"Make the folder {folder!r} first."
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(folder).free / 1e6
        return f"Free space for it ({free:.1f} MB are free in {folder!r}), or save elsewhere."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Allow to make and to rename files in {folder!r}, or save elsewhere."
    return "Mend that, or save elsewhere."


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
