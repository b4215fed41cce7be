"""The probes that read tensors out of a running step without changing what it computes."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.base import hooks
from tfdp.communication.replicas import compiler_of
from tfdp.keras._keras import strategy_of_model
from tfdp.keras.nested_optimizers import innermost
from tfdp.verification import readings


class GradientProbe:
    """The gradients with which a model's optimizers update: summed, unscaled and clipped.

    There are none if XLA compiles the step, since XLA cannot call Python, or if the strategy has a
    `shard`: each replica then has a part of them.

    Args:
      model: The model whose optimizers are watched.
    """

    def __init__(self, model: keras.Model) -> None:
        self._found: dict[tuple[str, int], np.ndarray] = {}
        strategy = strategy_of_model(model)
        is_compiled = model.jit_compile or compiler_of(strategy) is not None
        if is_compiled or getattr(strategy, "shard", None):
            return
        for outer in readings.optimizers(model):
            for optimizer in innermost(outer):
                hooks.put(optimizer, "_backend_update_step", self._probed)

    def take(self) -> readings.Readings:
        """Returns the gradients since the last call: one, or one of each replica's own update."""
        told, self._found = self._found, {}
        found: readings.Readings = {}
        for (path, _), gradient in told.items():
            found.setdefault((readings.GRADIENTS, path), []).append(gradient)
        return found

    def _probed(
        self, update: Callable[..., Any], gradients: Any, variables: Any, learning_rate: Any
    ) -> Any:
        """Updates as the optimizer does, and keeps the gradients for `tfdp.verify`."""
        gradients, variables = list(gradients), list(variables)
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                keep = functools.partial(self._keep, variable.path, _rank())
                tell(keep, _dense(gradient, variable))
        return update(gradients, variables, learning_rate)

    def _keep(self, path: str, rank: int, gradient: np.ndarray) -> None:
        self._found[path, rank] = gradient.copy()


def tell(listener: Callable[..., None], *tensors: tf.Tensor) -> None:
    """Calls `listener` with the tensors' values when the step has computed them.

    The calls of one step come in any order, of which TensorFlow would make one. What is no part of
    each replica's own code is told whole, and once: by the first process.
    """
    numbers = [tf.cast(t, tf.float32) if t.dtype == tf.bfloat16 else t for t in tensors]
    call = tf.numpy_function(listener, numbers, [])
    if not tf.executing_eagerly():
        order = tf.compat.v1.get_default_graph().experimental_acd_manager
        if order is not None:
            order.run_independently(call)


def _rank() -> int:
    """Returns the number of the replica whose own code is being traced; 0 on one device."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group)))


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        rows = variable.shape[0]
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return tf.convert_to_tensor(gradient)
