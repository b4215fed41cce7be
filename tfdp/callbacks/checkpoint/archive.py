"""The file of a checkpoint: an uncompressed zip of arrays and a manifest, whole or not there.

The zip keeps a CRC-32 of each part, and names all parts at its end: a file that was cut off or
changed is no checkpoint. So the end commits the file where nothing can be renamed at once, as in
object stores. `tf.train.Checkpoint` writes several files, whose index may name data that
is not there; Keras' `.weights.h5` has no checksums and leaves out the seeds of random layers.
"""

import contextlib
import errno
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tfdp.base.atomic_files import replacing
from tfdp.callbacks.checkpoint.remote_path import AnyPath, RemotePath

FORMAT = 1
_MANIFEST = "manifest.json"
_READ_BYTES = 2**20


class DamagedCheckpointError(Exception):
    """A file is no whole checkpoint of a format that is known."""


def write(
    path: AnyPath, manifest: Mapping[str, Any], arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes a checkpoint, which takes the place of a file at `path` when it is whole.

    Args:
      path: The file; its folder must exist. A remote one is written in its place, where it counts
        for nothing before its end is there.
      manifest: What is known beside the arrays; JSON.
      arrays: Names and arrays; one array is held at a time.

    Raises:
      OSError: The file cannot be written; what stood there, if it is not remote, has not changed.
    """
    described = {}
    with _opened(path) as opened, zipfile.ZipFile(opened, "w") as file:
        for name, array in arrays:
            dtype = tf.as_dtype(array.dtype).name
            described[name] = {"dtype": dtype, "shape": list(array.shape)}
            with file.open(name, "w", force_zip64=True) as part:
                part.write(content_of(array))
        text = json.dumps({**manifest, "format": FORMAT, "arrays": described})
        file.writestr(_MANIFEST, text)


@contextlib.contextmanager
def _opened(path: AnyPath) -> Iterator[Any]:
    if isinstance(path, RemotePath):
        with path.writing() as file:
            yield file
    else:
        with replacing(path) as new:
            yield new


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint's file, of which each is read when it is asked for.

    Args:
      file: The file, which is read from until `close`.
      parts: The parts of the file.
      described: Their dtypes and shapes by name, as the manifest tells them.
    """

    def __init__(
        self, file: IO[bytes], parts: zipfile.ZipFile, described: Mapping[str, Any]
    ) -> None:
        self._file, self._parts, self.described = file, parts, described

    def __getitem__(self, name: str) -> np.ndarray:
        return array_of(self._parts.read(name), self.described[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.described)

    def __len__(self) -> int:
        return len(self.described)

    def check(self) -> None:
        """Reads all of them once, piece by piece; a piece that has changed raises."""
        for name in self.described:
            with self._parts.open(name) as part:
                while part.read(_READ_BYTES):
                    pass

    def close(self) -> None:
        self._parts.close()
        self._file.close()


def content_of(array: np.ndarray) -> Any:
    """Returns the bytes that a file holds of an array; they are the array's own where it has any.

    Raises:
      TypeError: It holds objects that are no texts.

    >>> bytes(content_of(np.array([1, 2], "uint8")))
    b'\\x01\\x02'
    """
    if array.dtype == object:  # texts, of which NumPy has addresses
        others = {type(each).__name__ for each in array.flat if not isinstance(each, (bytes, str))}
        if others:
            raise TypeError(f"A checkpoint must be of numbers and texts, but received {others}.")
        return tf.io.serialize_tensor(tf.constant(array, tf.string)).numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_of(content: bytes, about: Mapping[str, Any]) -> np.ndarray:
    """Returns an array of what a file holds of it; it cannot be written to.

    >>> array_of(bytes(8), {"dtype": "float32", "shape": [1, 2]})
    array([[0., 0.]], dtype=float32)
    """
    dtype = _dtype(about)
    if dtype is object:
        texts = tf.io.parse_tensor(content, tf.string).numpy()
        return np.array(texts, dtype).reshape(about["shape"])
    return np.frombuffer(content, dtype).reshape(about["shape"])


def stand_ins(described: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns arrays of the described dtypes and shapes, without memory for what is in them.

    >>> stand_ins({"weight-0": {"dtype": "float32", "shape": [1000, 1000]}})["weight-0"].shape
    (1000, 1000)
    """
    return {
        name: np.broadcast_to(np.zeros((), _dtype(about)), about["shape"])
        for name, about in described.items()
    }


def _dtype(about: Mapping[str, Any]) -> Any:
    return tf.as_dtype(about["dtype"]).as_numpy_dtype


def read(path: AnyPath) -> tuple[dict[str, Any], Arrays]:
    """Returns the manifest and the arrays of a checkpoint.

    Args:
      path: The file. It stays open until the arrays are closed; a remote one is in memory until
        then, for not all file systems read a file in parts.

    Raises:
      DamagedCheckpointError: The file is not whole, or of another format.
      OSError: The file cannot be read.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "one")
    >>> write(path, {"step": 3}, [("w", np.ones(2, "float32"))])
    >>> manifest, arrays = read(path)
    >>> manifest["step"], arrays["w"]
    (3, array([1., 1.], dtype=float32))
    >>> arrays.close()
    """
    file: IO[bytes] = (
        io.BytesIO(path.read_bytes()) if isinstance(path, RemotePath) else path.open("rb")
    )
    try:
        parts = zipfile.ZipFile(file)
        manifest = json.loads(parts.read(_MANIFEST))
        if manifest.get("format") != FORMAT:
            raise DamagedCheckpointError(
                f"it is of format {manifest.get('format')!r}, and this tfdp reads {FORMAT}"
            )
        arrays = Arrays(file, parts, manifest.pop("arrays"))
        arrays.check()
        stand_ins(arrays.described)  # raises where a dtype or a shape is none
    except Exception as error:  # bytes of any kind can fail in any way
        file.close()
        # A place before the file's beginning, which damaged bytes may name, is no failing disk.
        fails = isinstance(error, OSError) and error.errno != errno.EINVAL
        if fails or isinstance(error, DamagedCheckpointError):
            raise
        raise DamagedCheckpointError(f"{type(error).__name__}: {error}") from error
    return manifest, arrays
