"""Python in a graph, that does not outlive the graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def call_with_indices(method: Callable[[np.ndarray], Any], indices: tf.Tensor, dtype: Any) -> Any:
    """Calls a bound method by `tf.numpy_function`.

    TensorFlow keeps every such function as long as the process lives, with all that it holds. So
    here it holds nothing: the graph that is traced keeps the method's object, and with it, what a
    dataset reads is freed when the dataset is.

    Args:
      method: A bound method that takes an array of indices and returns one element for each.
      indices: Its argument, shape (k,).
      dtype: Of its result.

    Returns:
      Its result, shape (k,).

    >>> import numpy as np
    >>> class Doubled:
    ...     def read(self, indices):
    ...         return 2 * indices
    >>> call_with_indices(Doubled().read, tf.constant([3]), tf.int32).numpy()
    array([6], dtype=int32)
    """
    reference = weakref.WeakMethod(method)
    owner = method.__self__  # type: ignore[attr-defined]
    if not tf.executing_eagerly():
        tf.compat.v1.get_default_graph().add_to_collection("tfdp_readers", owner)

    def call(argument: np.ndarray) -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError(
                "A source must live as long as the dataset that reads it; it is gone. Keep the "
                "dataset that was made of it."
            )
        return alive(argument)

    result = tf.numpy_function(call, [indices], dtype)
    result.set_shape(indices.shape)
    return result
