"""Quotients of tables' gradients, whose rows Keras counts only as a step runs.

An optimizer such as RMSprop divides the rows of an embedding's gradient by a whole table. Where
that has zeros, Keras adds their rows, which become NaN, to those of the quotient, and only a run
says how many. A program of fixed sizes adds all rows, zeros mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import numpy


@hook(numpy, "divide")
def divide(original: Callable[..., Any], x1: Any, x2: Any) -> Any:
    """Divides rows of a table, in a program of fixed sizes, to a known number of rows."""
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
