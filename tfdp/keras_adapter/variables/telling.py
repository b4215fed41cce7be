"""A check in a graph without a side effect."""

from __future__ import annotations

import tensorflow as tf


def zero_if(condition: tf.Tensor, message: str) -> tf.Tensor:
    """Returns 0, int64, if `condition` is true; else the step fails and says `message`.

    An `Assert` has a side effect, which is ordered among those of the program (`effects`). The
    conversion of a string to a number has none, and its error repeats a string that is no number.
    """
    return tf.strings.to_number(tf.where(condition, "0", message), tf.int64)
