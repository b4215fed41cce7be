"""The probes that read gradients and layers' outputs out of a running step.

They do not change what the step computes.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.base import hooks
from tfdp.communication.replicas import compiler_of
from tfdp.keras._keras import strategy_of_model
from tfdp.keras.nested_optimizers import innermost
from tfdp.verification import readings, source_lines
from tfdp.verification.run_differences import Table, difference, largest


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


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """The outputs of one call of a layer, for the whole batch."""

    path: str
    outputs: tuple[np.ndarray, ...]


class LayerCalls:
    """The calls of all layers in a step.

    Attributes:
      keep: Whether the outputs of the step that runs now are kept.
      traced: The layer of each path, and the operations of its last traced call.
    """

    def __init__(self) -> None:
        self.keep = False
        self.traced: dict[str, tuple[Any, list[source_lines.Operation]]] = {}
        self._found: dict[int, LayerCall] = {}
        self._numbers = itertools.count()
        self._graph: Any = self  # none yet

    def in_order(self) -> list[LayerCall]:
        """Returns the calls, an inner layer's before its holder's; none but in the first process.

        A step under a strategy tells what it computes once, and there.
        """
        return [call for _, call in sorted(self._found.items(), key=lambda item: item[0])]

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the calls of all layers are watched."""
        return hooks.replaced(keras.layers.Layer, "__call__", self._watched)

    def _watched(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a layer, and keeps its outputs for `tfdp.verify`."""
        graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
        outer = self._graph
        if outer is not self and graph is not outer:
            return original(layer, *args, **kwargs)  # within a loop or a branch of another layer
        self._graph = graph
        before = 0 if graph is None else len(graph.get_operations())
        try:
            outputs = original(layer, *args, **kwargs)
        finally:
            self._graph = outer
        tensors = [t for t in tf.nest.flatten(outputs) if isinstance(t, tf.Tensor)]
        tensors = [t for t in tensors if t.dtype.is_numpy_compatible and t.dtype != tf.string]
        if tensors:
            path = layer.path or layer.name
            made = [] if graph is None else graph.get_operations()[before:]
            self.traced[path] = layer, [source_lines.Operation.of(operation) for operation in made]
            # Calls are numbered while the step is traced, for it tells the outputs in any order.
            tell(functools.partial(self._keep, path, next(self._numbers)), *tensors)
        return outputs

    def _keep(self, path: str, number: int, *outputs: np.ndarray) -> None:
        if self.keep:
            self._found[number] = LayerCall(path, tuple(np.array(output) for output in outputs))


def differences(reference: Sequence[LayerCall], other: Sequence[LayerCall]) -> Table:
    """Compares the outputs of the calls of two runs, up to the first call that only one makes.

    Returns:
      The differences by the number of the call and the layer's path.
    """
    table: Table = {}
    for number, (expected, actual) in enumerate(zip(reference, other, strict=False)):
        if actual.path != expected.path:
            break
        table[number, "layer output", expected.path] = max(
            difference(found, wanted, largest([wanted]))
            for found, wanted in zip(actual.outputs, expected.outputs, strict=False)
        )
    return table
