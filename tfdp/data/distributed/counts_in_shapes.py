"""Numbers of a share that the host needs, as the shape of a tensor without elements.

TensorFlow's iterators over GPUs copy all parts of an element into their memory. To read a number
there the host waits until the GPU has done all that it was given, and gives it nothing meanwhile.
The host knows a tensor's shape wherever the tensor lies.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# TensorFlow's most axes of a tensor; each number takes two, of 32 bits, and one more is empty.
_MOST_AXES = 254


def needed_by(devices: Sequence[str]) -> bool:
    """Returns whether some replicas' devices have a memory that the host cannot just read."""
    return {tf.DeviceSpec.from_string(device).device_type for device in devices} != {"CPU"}


def told_by_shapes(shares: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of the parts of `BatchShard`s in which a shape tells the place.

    Numbers of which a shape would have too many axes stay as they are: over 126 of them.
    """

    @tf.autograph.experimental.do_not_convert
    def tell(rows: Any, place: tf.Tensor, *known: Any) -> Any:
        return rows, _shaped(place), *known

    return shares.map(tell)


def _shaped(numbers: tf.Tensor) -> tf.Tensor:
    (count,) = numbers.shape
    if count is None or 1 + 2 * count > _MOST_AXES:
        return numbers
    halves = tf.reshape(tf.cast(tf.bitcast(numbers, tf.uint32), tf.int64), [-1])
    shape = tf.concat([[0], halves], 0)
    return tf.ensure_shape(tf.zeros(shape, tf.bool), [0] + [None] * (2 * count))


def read(told: Any) -> Any:
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
