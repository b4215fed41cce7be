"""The source of datasets of tf.data, read as streams."""

import zlib
from typing import Any

import tensorflow as tf

from tfdp.data.sources.abstract import AbstractStreamSource


class DatasetSource(AbstractStreamSource):
    """The examples of a `tf.data.Dataset`.

    The dataset must give the same examples in the same order each time: no `shuffle`, unless with
    `reshuffle_each_iteration=False` and a seed, and no random numbers without one. Neither can be
    seen from outside; workers that read different orders train on some examples twice and on others
    never.

    Args:
      dataset: A dataset that is not batched and not repeated; its shapes may be unknown.

    Attributes:
      fingerprint: A text of the spec of an example and their number only: two datasets of one shape
        and length look alike.

    Raises:
      TypeError: The argument is no dataset.
      ValueError: The dataset is infinite, empty or batched, as far as TensorFlow can tell: not
        where a `map` follows the batching, nor where the batching runs in parallel.

    Cost: reads nothing here. Every worker reads all examples.

    >>> source = DatasetSource(tf.data.Dataset.range(5))
    >>> source.num_examples, [int(example) for example in source.examples()]
    (5, [0, 1, 2, 3, 4])
    """

    fingerprint_covers = "the number and the spec of the examples; none was read"

    def __init__(self, dataset: tf.data.Dataset) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "`dataset` must be a tf.data.Dataset, but received a "
                f"{type(dataset).__name__}. Use tf.data.Dataset.from_generator(...) of an "
                "iterator."
            )
        cardinality = int(dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "`dataset` must end, but it repeats for ever. Leave `.repeat()` out, or use "
                ".take(examples_per_epoch)."
            )
        if not cardinality:
            raise ValueError(
                "`dataset` must hold at least one example, but received an empty one. Check what "
                "made it."
            )
        batch_size = _batch_size(dataset)
        if batch_size > 0:
            raise ValueError(
                f"`dataset` must give single examples, but it gives batches of {batch_size}. Leave "
                "`.batch` out or use dataset.unbatch(); if one batch is one example, use "
                "dataset.batch(1).unbatch()."
            )
        self._dataset = dataset
        self._length = None if cardinality == tf.data.UNKNOWN_CARDINALITY else cardinality
        self.element_spec: Any = dataset.element_spec
        spec = zlib.crc32(repr(self.element_spec).encode())
        self.fingerprint = f"dataset of {self._length}: {spec:08x}"

    @property
    def num_examples(self) -> int | None:
        """The number that the dataset knows; None where it does not, as after a `filter`."""
        return self._length

    def describe(self) -> str:
        """Names the number of examples."""
        return f"a tf.data.Dataset of {self._length or 'an unknown number of'} examples"

    def examples(self) -> tf.data.Dataset:
        """Returns the dataset, in its own order also where it maps in parallel."""
        options = tf.data.Options()
        options.deterministic = True
        return self._dataset.with_options(options)


def _batch_size(dataset: tf.data.Dataset) -> int:
    """Returns the batch size; 0 or less if the last step that may batch does not."""
    variant = tf.data.experimental.to_variant(dataset)
    return int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
