"""The shares of a batch that a step of Keras' trainer is given."""

from typing import NamedTuple

import tensorflow as tf


class KnownLengths(tf.experimental.ExtensionType):
    """What tracing knows of the numbers of rows of a batch's leaves, each sharded by its own.

    Attributes:
      lengths: The numbers; -1 where it knows nothing.
    """

    lengths: tuple[int, ...]


class BatchShard(NamedTuple):
    """The share of one replica, as iterators of shares give it to a step of Keras' trainer.

    Attributes:
      rows: The replica's examples, as the model's step takes them. A replica without examples has a
        stand-in: an example of another replica.
      place: Four int64 numbers: the replica's rank, the number of its examples, the number of
        examples before them in the batch, and the number of examples in the batch: those of the
        first leaf that is cut. Then follow the numbers of rows of all leaves that are cut, unless
        they are known to be one; and in a cluster the fingerprints of the whole batch's leaves
        where each process has read it.
      known: The `KnownLengths` of these leaves; nothing where all have one.
    """

    rows: object
    place: tf.Tensor
    known: KnownLengths | tuple[()] = ()


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


def num_lengths(known: object) -> int:
    """Returns how many numbers of rows `BatchShard.place` holds beside that of the first leaf.

    Args:
      known: `BatchShard.known` of a replica, or its spec.
    """
    return len(getattr(known, "lengths", ()))


def of_replica(index: int, value: tf.Tensor | tf.distribute.DistributedValues) -> tf.Tensor:
    """Returns what a local replica has of a distributed value; of another one all have it whole."""
    return value.values[index] if isinstance(value, tf.distribute.DistributedValues) else value
