"""Calls of Python in a graph, which do not outlive the graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def call_with_indices(
    method: Callable[[np.ndarray], Any], indices: tf.Tensor, specs: Sequence[tf.TensorSpec]
) -> list[tf.Tensor]:
    """Calls a bound method by `tf.numpy_function`.

    TensorFlow keeps every such function, with all that it holds, as long as the process lives. So
    the function here holds nothing: the graph that is traced keeps the method's object, and what a
    dataset reads is freed when the dataset is.

    Args:
      method: A bound method that takes an array of indices and returns an array, or a list of them,
        with one element for each index along axis 0.
      indices: The method's argument, shape (k,).
      specs: For each array the spec of one element.

    Returns:
      The method's result, each array of shape (k, ...).

    >>> import numpy as np
    >>> class Doubled:
    ...     def read(self, indices):
    ...         return [2 * indices]
    >>> spec = tf.TensorSpec([], tf.int32)
    >>> call_with_indices(Doubled().read, tf.constant([3]), [spec])[0].numpy()
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

    results = tf.numpy_function(call, [indices], [spec.dtype for spec in specs])
    if tf.is_tensor(results):
        results = [results]  # eagerly a single result is no list
    for result, spec in zip(results, specs, strict=True):
        result.set_shape([indices.shape[0], *spec.shape])
    return results
