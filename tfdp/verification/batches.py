"""The batches that all runs train on, read once from any data that `fit` takes in batches."""

import itertools
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data import Pipeline

_EXAMPLE = "[(x, y)] or [(x, y, sample_weight)]"


class Batches:
    """The batches of a program, kept in memory, so that every run reads the same ones.

    Args:
      given: A list of batches, a `tf.data.Dataset`, a pipeline, a `PyDataset`, or another iterable
        of batches as `fit` takes them.
      steps: How many batches are needed. If there are fewer, they are repeated in turn.

    Raises:
      TypeError: `given` is one batch, or yields something that TensorFlow cannot convert.
      ValueError: There is no batch, or one has no example.
    """

    def __init__(self, given: Any, steps: int) -> None:
        taken = [_tensors(batch) for batch in _taken(given, steps)]
        if not taken:
            raise ValueError(
                "`batches` must yield at least one batch, but yields none. A generator that was "
                f"read before is empty: make it anew, or give a list such as {_EXAMPLE}."
            )
        self.steps = list(itertools.islice(itertools.cycle(taken), steps))
        for number, batch in enumerate(self.steps, start=1):
            if not rows(batch):
                raise ValueError(
                    f"Each batch must hold at least one example, but number {number} has none, or "
                    f"no axis of examples. Give batches such as {_EXAMPLE}."
                )
        if isinstance(given, tf.data.Dataset):
            self._spec = given.element_spec
        else:
            self._spec = tf.nest.map_structure(_any_rows, self.steps[0])

    def dataset(self) -> tf.data.Dataset:
        """Returns the batches as a dataset for `fit`."""
        dataset = tf.data.Dataset.from_generator(
            lambda: map(_copied, self.steps), output_signature=self._spec
        )
        return dataset.apply(tf.data.experimental.assert_cardinality(len(self.steps)))

    def described(self) -> dict[str, str]:
        """Returns each batch's shapes and a checksum of its numbers, to compare them by rank."""
        found = {}
        for number, batch in enumerate(self.steps, start=1):
            flat = [leaf.numpy() for leaf in tf.nest.flatten(batch, expand_composites=True)]
            checksum = 0
            for array in flat:
                if array.dtype != object:
                    checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
            shapes = [list(array.shape) for array in flat]
            found[f"number {number}"] = f"{shapes} (checksum {checksum:08x})"
        return found


def _copied(batch: Any) -> Any:
    """Returns a batch in memory of its own: TensorFlow may write into that of a generator's."""

    def copied(leaf: tf.Tensor) -> tf.Tensor:
        return tf.constant(np.array(leaf), leaf.dtype)

    return tf.nest.map_structure(copied, batch, expand_composites=True)


def rows(batch: Any) -> int:
    """Returns the number of examples in a batch; 0 if no part has an axis of examples."""
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.SparseTensor):
            return int(leaf.dense_shape[0])
        if leaf.shape.rank != 0:
            return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else leaf.shape[0]
    return 0


def _taken(given: Any, steps: int) -> list[Any]:
    if isinstance(given, keras.utils.PyDataset):
        return [given[index] for index in range(min(steps, given.num_batches or steps))]
    one_batch = hasattr(given, "__array__") or isinstance(given, (dict, str, bytes))
    if isinstance(given, tuple) and any(hasattr(part, "shape") for part in given):
        one_batch = True
    if one_batch or not hasattr(given, "__iter__"):
        raise TypeError(
            f"`batches` must yield batches, but received {type(given).__name__!r}, which is one "
            f"batch or none. Use a list of them, such as {_EXAMPLE}, or a dataset."
        )
    if isinstance(given, Pipeline):
        given = given.from_start()  # an epoch of its own, of which no batch counts as trained
    return list(itertools.islice(given, steps))


def _tensors(batch: Any) -> Any:
    """Returns a batch with tensors for its arrays, and tuples for lists of arrays, as in Keras."""
    if isinstance(batch, dict):
        return {name: _tensors(part) for name, part in batch.items()}
    if isinstance(batch, tuple) or (isinstance(batch, list) and _holds_arrays(batch)):
        return tuple(_tensors(part) for part in batch)
    if isinstance(batch, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return batch
    array = None if batch is None else np.asarray(batch)
    if array is None or array.dtype == object:
        raise TypeError(
            f"A batch must hold arrays or tensors, but one holds {type(batch).__name__!r}. Give "
            f"batches such as {_EXAMPLE}."
        )
    # `fit` converts float64 arrays to Keras' default dtype as well.
    return tf.constant(array, keras.config.floatx() if array.dtype == np.float64 else None)


def _holds_arrays(parts: list[Any]) -> bool:
    return any(hasattr(part, "shape") or isinstance(part, (dict, tuple)) for part in parts)


def _any_rows(leaf: Any) -> tf.TypeSpec:
    """Returns the type of a tensor with an open number of rows, as `fit` declares arrays."""
    if isinstance(leaf, tf.RaggedTensor):
        shape = [None, *leaf.shape[1:]]
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
    shape = leaf.shape if leaf.shape.rank == 0 else [None, *leaf.shape[1:]]
    if isinstance(leaf, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, leaf.dtype)
    return tf.TensorSpec(shape, leaf.dtype)
