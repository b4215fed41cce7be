"""Paths of file systems that TensorFlow reaches by a URL, such as `gs://bucket/run`."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import TypeAlias

import tensorflow as tf

# TensorFlow's writer takes bytes alone; a copy of a part is made at a time.
_PART_BYTES = 1 << 24


class RemotePath:
    """A file or a folder at a URL, with those methods of `pathlib.Path` that checkpoints need.

    Raises:
      OSError: By each method: the file system cannot do it.

    >>> folder = RemotePath("ram://a-training/")
    >>> with (folder / "one").writing() as file:
    ...     _ = file.write(b"1"), file.write(b"2")
    >>> (folder / "one").read_bytes(), [path.name for path in folder.iterdir()]
    (b'12', ['one'])
    >>> (folder / "one").rename("ram://a-training/two")
    >>> str((folder / "two").parent), (folder / "one").is_file()
    ('ram://a-training', False)
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self._url.rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        """Returns the path of another name in the same folder."""
        return self.parent / name

    def is_dir(self) -> bool:
        with _os_errors():
            return bool(tf.io.gfile.isdir(self._url))

    def is_file(self) -> bool:
        with _os_errors():
            return bool(tf.io.gfile.exists(self._url) and not tf.io.gfile.isdir(self._url))

    def iterdir(self) -> Iterator[RemotePath]:
        with _os_errors():
            return iter([self / name.rstrip("/") for name in tf.io.gfile.listdir(self._url)])

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Makes the folder, and those that it is in, unless it is there."""
        with _os_errors():
            tf.io.gfile.makedirs(self._url)

    def read_bytes(self) -> bytes:
        with _os_errors(), tf.io.gfile.GFile(self._url, "rb") as file:
            return bytes(file.read())

    @contextlib.contextmanager
    def writing(self) -> Iterator[RemoteWriter]:
        """Yields what writes the file; it is sent at the latest when the context ends."""
        self.unlink(missing_ok=True)  # TensorFlow's file system in memory would append to it
        with _os_errors(), tf.io.gfile.GFile(self._url, "wb") as file:
            yield RemoteWriter(file)

    def rename(self, target: str) -> None:
        """Renames the file; a file at the target, a URL, goes."""
        with _os_errors():
            tf.io.gfile.rename(self._url, target, overwrite=True)

    def unlink(self, missing_ok: bool = False) -> None:
        with _os_errors():
            try:
                tf.io.gfile.remove(self._url)
            except tf.errors.NotFoundError:
                if not missing_ok:
                    raise


class RemoteWriter:
    """What `zipfile` needs of a file that is only written to, from its beginning to its end."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        for begin in range(0, len(data), _PART_BYTES):
            self._file.write(bytes(data[begin : begin + _PART_BYTES]))
        return len(data)

    def flush(self) -> None:
        """Does nothing: many of these file systems send a file as a whole."""


# A path of this system, or of another one.
AnyPath: TypeAlias = pathlib.Path | RemotePath


def as_path(given: str | os.PathLike[str]) -> AnyPath:
    """Returns the path of a file system that this process reaches.

    Raises:
      ValueError: TensorFlow knows no such file system.

    >>> as_path("checkpoints"), str(as_path("ram://checkpoints"))
    (PosixPath('checkpoints'), 'ram://checkpoints')
    """
    text = os.fspath(given)
    scheme, colon, _ = text.partition("://")
    if not colon:
        return pathlib.Path(text).expanduser()
    known = tf.io.gfile.get_registered_schemes()
    if scheme not in known:
        names = ", ".join(f"{name}://" for name in sorted(filter(None, known)))
        raise ValueError(
            f"A folder must be of a file system that TensorFlow reaches ({names}); received "
            f"{text!r}. Install and import what registers {scheme}:// with `tf.io.gfile`, such as "
            "tensorflow-io, or mount the storage and give the folder where it is mounted."
        )
    return RemotePath(text)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"{type(error).__name__}: {error.message}") from error
