"""A check in a graph that replicas do not wait for."""

from __future__ import annotations

import tensorflow as tf


def zero_if(condition: tf.Tensor, message: str) -> tf.Tensor:
    """Returns 0, int64, if `condition` is true; else the step fails and says `message`.

    An `Assert` is stateful: those of all replicas in one graph run one after the other, and would
    wait for each other around a collective for ever. No other operation says what it is told.
    """
    return tf.strings.to_number(tf.where(condition, "0", message), tf.int64)
