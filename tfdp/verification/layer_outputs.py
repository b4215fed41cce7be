"""The outputs of each layer in one step, and how far they are from those of one device."""

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
from tfdp.verification import source_lines
from tfdp.verification.probes import tell
from tfdp.verification.run_differences import Table, difference, largest


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
