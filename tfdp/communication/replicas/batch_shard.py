"""The shares of a batch that a step of Keras' trainer is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf


class BatchShard(NamedTuple):
    """The share of one replica, as iterators of shares give it to a step of Keras' trainer.

    Attributes:
      rows: The replica's examples, as the model's step takes them. A replica without examples has a
        stand-in: an example of another replica.
      place: Four int64 numbers: the replica's rank, the number of its examples, the number of
        examples before them in the batch, and the number of examples in the batch: those of the
        first leaf that is cut. In a cluster the fingerprints of the whole batch's leaves follow
        where each process has read it.
      lengths: The numbers of rows of all leaves that are cut, int64, each of which is cut by its
        own; by a text of those that tracing knows, see `tfdp.data.distributed.row_counts`. Nothing
        where all have one.
    """

    rows: object
    place: tf.Tensor
    lengths: Mapping[str, tf.Tensor] | Sequence[tf.Tensor] = ()


class FullBatchShard(BatchShard):
    """The share of a replica in a batch of which every replica is known to have examples."""


class TurnBatchShard(BatchShard):
    """The share of a replica in a batch that was not cut: each replica read its own examples.

    In `place` the numbers of examples of all replicas follow.
    """


def rows_of(leaf: object) -> tf.Tensor:
    """Returns the number of rows of an array, or of a dense, ragged or sparse tensor; int64."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, tf.int64)[0]


def of_replica(index: int, value: tf.Tensor | tf.distribute.DistributedValues) -> tf.Tensor:
    """Returns what a local replica has of a distributed value; of another one all have it whole."""
    return value.values[index] if isinstance(value, tf.distribute.DistributedValues) else value
