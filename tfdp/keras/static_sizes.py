"""Programs whose sizes are all known when they are traced, where one device's trace knows fewer.

`fit` traces a step for batches of any length, and a compiler of fixed sizes for one of each. What
Keras makes of a known length must not make a difference.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import CompileLoss, get_keras_mask, numpy, set_keras_mask


@hook(CompileLoss, "call")
def call(
    original: Callable[..., Any],
    self: CompileLoss,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    """Logs the losses of several outputs with the weights that they have on one device.

    Keras weighs each output's logged loss by the length of the batch where a trace knows it, and by
    1 where not, as in `fit` on one device: a short last batch would weigh less.
    """
    if one_device.program().sizes_are_fixed and len(keras.tree.flatten(y_pred)) > 1:
        y_pred = keras.tree.map_structure(_of_any_length, y_pred)
    return original(self, y_true, y_pred, sample_weight)


@hook(numpy, "divide")
def divide(original: Callable[..., Any], x1: Any, x2: Any) -> Any:
    """Divides rows of a table, in a program of fixed sizes, to a known number of rows.

    An optimizer such as RMSprop divides the rows of an embedding's gradient by a whole table. Where
    that has zeros, Keras adds their rows, which become NaN, to those of the quotient, and only a
    run says how many. A program of fixed sizes adds all rows, zeros mostly.
    """
    is_of_table = isinstance(x1, tf.IndexedSlices) and len(getattr(x2, "shape", ())) > 0
    if not (one_device.program().sizes_are_fixed and is_of_table):
        return original(x1, x2)
    x2 = tf.convert_to_tensor(x2)
    rows = original(x1.values, tf.gather(x2, x1.indices))
    size = tf.shape(x2, x1.indices.dtype)[0]
    is_among = tf.math.unsorted_segment_sum(tf.ones_like(x1.indices), x1.indices, size) > 0
    is_among = tf.reshape(is_among, [-1, *[1] * (x2.shape.rank - 1)])
    others = tf.where(is_among, tf.zeros_like(x2), original(tf.zeros_like(x2), x2))
    indices = tf.concat([x1.indices, tf.range(size)], 0)
    return tf.IndexedSlices(tf.concat([rows, others], 0), indices, x1.dense_shape)


def _of_any_length(predicted: Any) -> Any:
    """Returns a tensor with the same numbers, of which no trace knows the length."""
    if not tf.is_tensor(predicted) or not predicted.shape.rank:
        return predicted
    found = tf.raw_ops.PlaceholderWithDefault(input=predicted, shape=[None, *predicted.shape[1:]])
    mask = get_keras_mask(predicted)
    if mask is not None:
        set_keras_mask(found, mask)
    return found
