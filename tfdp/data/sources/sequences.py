"""The source of Python objects that give an example for an index."""

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource, call_with_indices
from tfdp.data.sources.arrays import as_arrays


class SequenceSource(AbstractIndexedSource):
    """The items of an object with `__len__` and `__getitem__`, each of them an example.

    The data sources of TensorFlow Datasets and Grain and the datasets of PyTorch are such objects.
    All examples have the structure, shapes and dtypes of the first.

    Args:
      sequence: An object whose items are arrays, numbers or strings, or tuples, lists and dicts of
        them. If it has `__getitems__`, this is called with a list of indices and returns as many
        examples. The object is called from several threads.
      fingerprint: A text that tells this data from other data. None: the object's class, its length
        and the spec of an example, so two halves of one data set look alike. The values of examples
        are left out, since they may be augmented at random.

    Raises:
      ValueError: The object is empty, or its first example is no nest of arrays. An example unlike
        the first raises `tf.errors.InvalidArgumentError` when it is read.

    Cost: reads example 0 once. Python reads the examples one at a time, holding its interpreter's
    lock unless the object releases it; 1 copy of each.

    >>> class Squares:
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def __getitem__(self, index):
    ...         return {"x": index, "y": float(index**2)}
    >>> source = SequenceSource(Squares())
    >>> source.rows(tf.constant([3, 1], tf.int64))["y"].numpy()
    array([9., 1.])
    """

    fingerprint_covers = "the object's class, its length and the spec of an example"

    def __init__(self, sequence: Any, *, fingerprint: str | None = None) -> None:
        if not all(hasattr(sequence, method) for method in ("__len__", "__getitem__")):
            raise TypeError(
                "`sequence` must have `__len__` and `__getitem__`, but received a "
                f"{type(sequence).__name__}. Of an iterator, use "
                "tf.data.Dataset.from_generator(...)."
            )
        if not len(sequence):
            raise ValueError(
                "`sequence` must hold at least one example, but the length of the "
                f"{type(sequence).__name__} is 0. Check what made it."
            )
        self._sequence = sequence
        self.vectorized = hasattr(sequence, "__getitems__")
        first = as_arrays(sequence[0])
        self.element_spec = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), first
        )
        self._specs = tf.nest.flatten(self.element_spec)
        if fingerprint:
            self.fingerprint_covers = "what was given as `fingerprint`"
        spec = zlib.crc32(repr(self.element_spec).encode())
        self.fingerprint = (
            fingerprint or f"{type(sequence).__name__} of {len(sequence)}: {spec:08x}"
        )

    def __len__(self) -> int:
        return len(self._sequence)

    def describe(self) -> str:
        """Names the object's class, and the number of examples."""
        return f"a {type(self._sequence).__name__} of {len(self)} examples"

    def rows(self, indices: tf.Tensor) -> Any:
        """Asks the object for the examples."""
        rows = call_with_indices(self._read, indices, self._specs)
        return tf.nest.pack_sequence_as(self.element_spec, rows)

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        chosen = indices.tolist()
        if self.vectorized:
            examples = self._sequence.__getitems__(chosen)
            if len(examples) != len(chosen):
                raise ValueError(
                    "`__getitems__` must return as many examples as it is asked for, but received "
                    f"{len(examples)} for {len(chosen)} of {self.describe()}. Return a list."
                )
        else:
            examples = [self._sequence[index] for index in chosen]
        checked = [
            self._checked(example, index) for example, index in zip(examples, chosen, strict=True)
        ]
        return [
            _stacked([example[leaf] for example in checked], spec)
            for leaf, spec in enumerate(self._specs)
        ]

    def _checked(self, example: Any, index: int) -> list[np.ndarray]:
        """Returns the leaves of an example, which must be like the first."""
        arrays = as_arrays(example)
        leaves = tf.nest.flatten(arrays)
        try:
            tf.nest.assert_same_structure(self.element_spec, arrays)
            alike = all(
                leaf.shape == tuple(spec.shape) and tf.as_dtype(leaf.dtype) == spec.dtype
                for leaf, spec in zip(leaves, self._specs, strict=True)
            )
        except (TypeError, ValueError):
            alike = False
        if not alike:
            received = tf.nest.map_structure(_words, arrays)
            wanted = tf.nest.map_structure(
                lambda spec: f"{spec.dtype.name} {spec.shape.as_list()}", self.element_spec
            )
            raise ValueError(
                f"Every example must be like the first, {wanted}, but example {index} of "
                f"{self.describe()} is {received}. Convert, pad or resize it in `__getitem__`."
            )
        return leaves


def _stacked(leaves: list[np.ndarray], spec: tf.TensorSpec) -> np.ndarray:
    if leaves:
        return np.stack(leaves)
    return np.empty([0, *spec.shape], spec.dtype.as_numpy_dtype)


def _words(leaf: np.ndarray) -> str:
    return f"{tf.as_dtype(leaf.dtype).name} {list(leaf.shape)}"
