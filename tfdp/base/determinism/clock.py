"""A clock in graphs that TensorFlow's determinism does not forbid."""

import time

import numpy as np
import tensorflow as tf

from tfdp.base.determinism._tensorflow import is_op_determinism_enabled


def seconds_in_graph() -> tf.Tensor:
    """Returns the seconds since some moment, at the time the graph runs; a float64 scalar.

    `tf.timestamp` raises FailedPreconditionError under
    `tf.config.experimental.enable_op_determinism`, as its value differs from run to run. A clock's
    value never gets into what is trained, so where determinism is on, Python's clock is read.

    Cost: negligible; under determinism a call of Python, some 50 us.

    >>> clock = tf.function(lambda: seconds_in_graph())
    >>> bool(clock() <= clock())
    True
    """
    if not is_op_determinism_enabled():
        return tf.timestamp()
    return tf.reshape(tf.numpy_function(_now, [], tf.float64), [])


def _now() -> np.float64:
    return np.float64(time.time())
