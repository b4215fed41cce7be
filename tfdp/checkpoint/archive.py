"""The file of a checkpoint: an uncompressed zip of arrays and a manifest, whole or not there.

The zip keeps a CRC-32 of each part, and names all parts at its end: a file that was cut off or
changed is no checkpoint. So the end commits the file where nothing can be renamed at once, as in
object stores. `tf.train.Checkpoint` writes several files, whose index may name data that
is not there; Keras' `.weights.h5` has no checksums and leaves out the seeds of random layers.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.checkpoint.remote_path import AnyPath, RemotePath
from tfdp.files import replacing

FORMAT = 1
_MANIFEST = "manifest.json"


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
            described[name] = {"dtype": array.dtype.name, "shape": list(array.shape)}
            with file.open(name, "w", force_zip64=True) as part:
                part.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
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


def read(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the manifest and the arrays of a checkpoint; the arrays cannot be written to.

    Args:
      content: What the file holds.

    Raises:
      DamagedCheckpointError: The file is not whole, or of another format.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "one")
    >>> write(path, {"step": 3}, [("w", np.ones(2, "float32"))])
    >>> manifest, arrays = read(path.read_bytes())
    >>> manifest["step"], arrays["w"]
    (3, array([1., 1.], dtype=float32))
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            manifest = json.loads(parts.read(_MANIFEST))
            if manifest.get("format") != FORMAT:
                raise DamagedCheckpointError(
                    f"it is of format {manifest.get('format')!r}, and this tfdp reads {FORMAT}"
                )
            arrays = {
                name: np.frombuffer(
                    parts.read(name), tf.as_dtype(about["dtype"]).as_numpy_dtype
                ).reshape(about["shape"])
                for name, about in manifest.pop("arrays").items()
            }
    except DamagedCheckpointError:
        raise
    except Exception as error:  # bytes of any kind can fail in any way
        raise DamagedCheckpointError(f"{type(error).__name__}: {error}") from error
    return manifest, arrays
