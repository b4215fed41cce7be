"""The source of arrays in memory or memory-mapped, and of nests of them."""

import numbers
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.data_fingerprints import fingerprint_arrays
from tfdp.data.sources.abstract import AbstractIndexedSource, call_with_indices

_PROBES = 8  # examples whose bytes make the fingerprint


class ArraySource(AbstractIndexedSource):
    """The examples of a nest of NumPy arrays, along axis 0.

    Args:
      arrays: An array, or a tuple, list or dict of them, nested; all of one length. Tensors, data
        frames and lists of numbers or strings are converted; other lists become tuples, as
        `tf.data` has no lists. A `numpy.memmap` stays on disk: only the rows that are asked for are
        read.

    Raises:
      ValueError: There is no array, no example, an array without an axis, or lengths differ.
      TypeError: An array has a dtype that TensorFlow does not have, or objects that are no strings.

    Cost: arrays in memory are not copied if their dtype is TensorFlow's own and they are
    contiguous; 1 copy of each batch.

    >>> import numpy as np
    >>> source = ArraySource((np.zeros([5, 2], "float32"), np.arange(5)))
    >>> len(source), source.element_spec[0].shape
    (5, TensorShape([2]))
    """

    fingerprint_covers = f"structure, dtypes and shapes, and the bytes of {_PROBES} examples"

    def __init__(self, arrays: Any) -> None:
        arrays = as_arrays(arrays)
        leaves = tf.nest.flatten(arrays)
        lengths = [len(leaf) if leaf.ndim else None for leaf in leaves]
        if not leaves or None in lengths or len(set(lengths)) > 1:
            shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves) or "no array"
            raise ValueError(
                "The arrays of `source` must have one length along axis 0; received shapes "
                f"{shapes}. Cut them to one length."
            )
        if not lengths[0]:
            raise ValueError(
                "`source` must hold at least one example; received arrays of length 0. Check what "
                "made them."
            )
        self._length: int = lengths[0]
        self._structure = arrays
        self._leaves = leaves
        self._tensors: list[tf.Tensor] | None = None
        self.element_spec = self._packed(
            [tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)) for leaf in leaves]
        )
        self.fingerprint = f"arrays of {self._length}: {_checksum(leaves, self.element_spec):08x}"

    def __len__(self) -> int:
        return self._length

    def describe(self) -> str:
        """Lists the shapes."""
        return "arrays of shape " + ", ".join(str(list(leaf.shape)) for leaf in self._leaves)

    def content(self) -> dict[str, Any]:
        """Returns a checksum of the arrays, of large ones in part."""
        return fingerprint_arrays({str(i): leaf for i, leaf in enumerate(self._leaves)})

    def rows(self, indices: tf.Tensor) -> Any:
        """Gathers the rows."""
        if any(isinstance(leaf, np.memmap) for leaf in self._leaves):
            return self._rows_of_mapped(indices)
        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = [tf.convert_to_tensor(leaf) for leaf in self._leaves]
        return self._packed([tf.gather(tensor, indices) for tensor in self._tensors])

    def _rows_of_mapped(self, indices: tf.Tensor) -> Any:
        specs = tf.nest.flatten(self.element_spec)
        return self._packed(call_with_indices(self._read, indices, specs))

    def _read(self, chosen: np.ndarray) -> list[np.ndarray]:
        return [_native(leaf[chosen]) for leaf in self._leaves]

    def _packed(self, leaves: list[Any]) -> Any:
        return tf.nest.pack_sequence_as(self._structure, leaves)


def as_arrays(nest: Any) -> Any:
    """Makes NumPy arrays of the leaves of a nest.

    Args:
      nest: A nest of arrays, tensors, numbers and strings. A list of numbers or strings, or of such
        lists, is an array.

    Returns:
      A nest of tuples and dicts, each array of a dtype that TensorFlow has.

    Raises:
      ValueError: The lists of a list differ in length.
      TypeError: A leaf has another dtype, or objects that are no strings.

    >>> as_arrays({"x": [1, 2], "y": (3.0, "a")})
    {'x': array([1, 2]), 'y': (array(3.), array('a', dtype=object))}
    """
    if isinstance(nest, list) and not _is_array(nest):
        return tuple(as_arrays(part) for part in nest)
    if isinstance(nest, tuple):
        parts = [as_arrays(part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    if isinstance(nest, Mapping):
        return {key: as_arrays(part) for key, part in nest.items()}
    return _as_array(nest)


def _is_array(part: Any) -> bool:
    """Returns whether a list holds nothing but numbers, strings and lists of them."""
    if isinstance(part, list | tuple):
        return all(_is_array(item) for item in part)
    return isinstance(part, numbers.Number | str | bytes | np.generic)


def _as_array(leaf: Any) -> np.ndarray:
    try:
        array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    except ValueError as error:
        raise ValueError(
            f"The lists of `source` must make an array, but {error}. Pad them to one length."
        ) from error
    if array.dtype.kind in "UST":
        return array.astype(object)
    if array.dtype == object:
        strange = [item for item in array.flat if not isinstance(item, str | bytes)]
        if strange:
            raise TypeError(
                "An array of objects in `source` must hold nothing but str and bytes, but received "
                f"a {type(strange[0]).__name__}. Leave it out, or give all examples one shape and "
                'dtype, such as array.astype("float32").'
            )
    try:
        tf.as_dtype(array.dtype)
    except TypeError as error:
        raise TypeError(
            f"`source` must hold arrays of a dtype that TensorFlow has, but received {array.dtype}."
            ' Convert it, such as array.astype("float32").'
        ) from error
    return array if isinstance(array, np.memmap) else _native(array)


def _native(array: np.ndarray) -> np.ndarray:
    """Returns the array in this machine's byte order, contiguous; copies it only if it is not."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _checksum(leaves: list[np.ndarray], element_spec: Any) -> int:
    """Returns a checksum of the structure, shapes and dtypes, and a few rows."""
    checksum = zlib.crc32(repr(element_spec).encode())
    for leaf in leaves:
        rows = _native(leaf[np.unique(np.linspace(0, len(leaf) - 1, _PROBES).astype(int))])
        part = str(rows.tolist()).encode() if leaf.dtype == object else rows.tobytes()
        checksum = zlib.crc32(part, checksum)
    return checksum
