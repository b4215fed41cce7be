"""The shares of a batch that a step of Keras' trainer is given, and how their places travel.

TensorFlow's iterators over GPUs copy all parts of an element into their memory. To read a number
there the host waits until the GPU has done all that it was given, and gives it nothing meanwhile.
The host knows a tensor's shape wherever the tensor lies: there a place is the shape of a tensor
without elements.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdp.base.sharding import share_place


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
        first leaf that is sharded. Then follow the numbers of rows of all leaves that are sharded,
        unless they are known to be one; and in a cluster the fingerprints of the whole batch's
        leaves where each process has read it.
      known: The `KnownLengths` of these leaves; nothing where all have one.
    """

    rows: object
    place: tf.Tensor
    known: KnownLengths | tuple[()] = ()


class FullBatchShard(BatchShard):
    """The share of a replica in a batch of which every replica is known to have examples."""


class TurnBatchShard(BatchShard):
    """The share of a replica in a batch that was not sharded: each replica read its own examples.

    In `place` the numbers of examples of all replicas follow.
    """


def place_and_rows(
    size: tf.Tensor, num_replicas: int, rank: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a share's place in its batch, and the rows to take; an empty share takes the first.

    Args:
      size: The number of examples of the batch, int64.
      num_replicas: The number of replicas in all processes.
      rank: The rank of the share, int64.

    Returns:
      `sharding.share_place`, int64 (4); the first row, and the row after the last.

    >>> place_and_rows(tf.constant(1, tf.int64), 2, tf.constant(1, tf.int64))[0].numpy().tolist()
    [1, 0, 1, 1]
    """
    place = tf.stack(share_place(size, num_replicas, rank))
    _, count, start, _ = tf.unstack(place)
    first = tf.where(count > 0, start, 0)
    return place, first, first + tf.where(count > 0, count, tf.minimum(size, 1))


_WITH_AXES = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
_SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


def has_rows(leaf: object) -> bool:
    """Returns whether a value is a tensor, or its spec, with a first axis, as far as is known."""
    return isinstance(leaf, (*_WITH_AXES, *_SPECS)) and leaf.shape.rank != 0


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


# TensorFlow's most axes of a tensor; each number takes two, of 32 bits, and one more is empty.
_MOST_AXES = 254


def need_shapes(devices: Sequence[str]) -> bool:
    """Returns whether some replicas' devices have a memory that the host cannot just read."""
    return {tf.DeviceSpec.from_string(device).device_type for device in devices} != {"CPU"}


def told_by_shapes(shares: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the parts of `BatchShard`s in which a shape tells the place.

    Numbers of which a shape would have too many axes stay as they are: over 126 of them.
    """

    @tf.autograph.experimental.do_not_convert
    def tell(rows: object, place: tf.Tensor, *known: object) -> tuple[object, ...]:
        return rows, _shaped(place), *known

    return shares.map(tell)


def _shaped(numbers: tf.Tensor) -> tf.Tensor:
    (count,) = numbers.shape
    if count is None or 1 + 2 * count > _MOST_AXES:
        return numbers
    halves = tf.reshape(tf.cast(tf.bitcast(numbers, tf.uint32), tf.int64), [-1])
    shape = tf.concat([[0], halves], 0)
    return tf.ensure_shape(tf.zeros(shape, tf.bool), [0] + [None] * (2 * count))


def read_place(told: tf.Tensor | tf.TensorSpec) -> tf.Tensor | tf.TensorSpec:
    """Returns the numbers, int64, that a tensor's shape tells, or the spec of them.

    It must be asked for on the device that the tensor is on. To another one it would be copied,
    though it is empty.

    Args:
      told: What `told_by_shapes` gave, or numbers, or their spec.
    """
    if told.dtype != tf.bool:
        return told
    count = (told.shape.rank - 1) // 2
    if isinstance(told, tf.TypeSpec):
        return tf.TensorSpec([count], tf.int64)
    sizes = tf.raw_ops.Shape(input=told, out_type=tf.int64)
    with tf.device("CPU:0"):
        halves = tf.reshape(tf.cast(sizes[1:], tf.uint32), [count, 2])
        return tf.bitcast(halves, tf.int64)
