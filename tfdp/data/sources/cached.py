"""A source whose examples are kept in memory."""

import numpy as np
import tensorflow as tf

from tfdp.data.sources.abstract import AbstractIndexedSource
from tfdp.data.sources.arrays import ArraySource

_EXAMPLES_AT_A_TIME = 256


def cached(source: AbstractIndexedSource, memory_bytes: int | None = None) -> AbstractIndexedSource:
    """Reads all examples of `source` once, in parallel, into arrays.

    Args:
      source: A source whose examples are of one shape.
      memory_bytes: The most bytes they may take; None: any number. Strings are not counted.

    Raises:
      ValueError: They take more, or their shapes differ.

    Cost: reads all examples now, whichever replicas they are for, and keeps them.
    """
    if isinstance(source, ArraySource):
        return source
    specs = tf.nest.flatten(source.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(
            "With `cache` all examples must have one shape, known beforehand; received "
            f"{source.element_spec} of {source.describe()}. Leave `cache` out."
        )
    size = len(source) * sum(
        spec.shape.num_elements() * spec.dtype.size for spec in specs if spec.dtype != tf.string
    )
    if memory_bytes is not None and size > memory_bytes:
        raise ValueError(
            f"With `cache` all examples must fit into `memory_bytes`, but {len(source)} examples "
            f"take {size} bytes and it is {memory_bytes}. Leave `cache` out, or use "
            f"`memory_bytes={size}`."
        )
    return CachedSource(source)


class CachedSource(ArraySource):
    """The arrays that `cached` makes, known by the source they were read from."""

    def __init__(self, source: AbstractIndexedSource) -> None:
        super().__init__(_read(source))
        self.element_spec = source.element_spec
        self.fingerprint = source.fingerprint
        self.fingerprint_covers = source.fingerprint_covers
        self._description = source.describe()

    def describe(self) -> str:
        """Describes the source that was read."""
        return self._description


def _read(source: AbstractIndexedSource) -> object:
    indices = tf.data.Dataset.range(len(source))
    if source.vectorized:
        batches = indices.batch(_EXAMPLES_AT_A_TIME).map(source.rows, tf.data.AUTOTUNE)
    else:
        batches = indices.map(source.row, tf.data.AUTOTUNE).batch(_EXAMPLES_AT_A_TIME)
    arrays = [
        np.empty([len(source), *spec.shape], spec.dtype.as_numpy_dtype)
        for spec in tf.nest.flatten(source.element_spec)
    ]
    start = 0
    for batch in batches.as_numpy_iterator():
        leaves = tf.nest.flatten(batch)
        for array, leaf in zip(arrays, leaves, strict=True):
            array[start : start + len(leaf)] = leaf
        start += len(leaves[0])
    return tf.nest.pack_sequence_as(source.element_spec, arrays)
