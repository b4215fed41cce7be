"""Rows that stand for a replica's examples where it has none."""

from __future__ import annotations

import tensorflow as tf


def with_stand_in(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a replica; if there are none the first of `others`, or zeros."""
    if rows.dtype == tf.int32:
        # TensorFlow joins and chooses int32 in the host's memory, and floats where they are.
        bits = [tf.bitcast(each, tf.float32) for each in (rows, others)]
        return tf.bitcast(with_stand_in(*bits), tf.int32)
    shape = tf.concat([[1], tf.shape(rows)[1:]], 0)
    zeros = tf.zeros(shape, rows.dtype)
    found = tf.cond(tf.shape(rows)[0] > 0, lambda: rows, lambda: tf.concat([others, zeros], 0)[:1])
    if rows.shape.rank is None:
        return found
    return tf.ensure_shape(found, [None, *rows.shape[1:]])
