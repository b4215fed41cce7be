"""The outputs of each layer in one step, and how far they are from those of one device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp import hooks
from tfdp.verification import sources
from tfdp.verification.probes import rank, tell
from tfdp.verification.run_differences import Table, difference, largest


@dataclasses.dataclass(frozen=True)
class Call:
    """The outputs of one call of a layer on one replica."""

    path: str
    outputs: tuple[np.ndarray, ...]


class Calls:
    """The calls of all layers in a step.

    Attributes:
      keep: Whether the outputs of the step that runs now are kept.
      traced: The layer of each path, and the operations of its last traced call.
    """

    def __init__(self) -> None:
        self.keep = False
        self.traced: dict[str, tuple[Any, list[sources.Operation]]] = {}
        self._found: dict[int, dict[int, Call]] = {}  # by rank and number
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def by_rank(self) -> dict[int, list[Call]]:
        """Returns each local replica's calls, in order; an inner layer comes before its holder."""
        return {
            rank: [call for _, call in sorted(found.items(), key=lambda item: item[0])]
            for rank, found in self._found.items()
        }

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the calls of all layers are watched."""
        return hooks.replaced(keras.layers.Layer, "__call__", self._watched)

    def _watched(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a layer, and keeps its outputs for `tfdp.verify`."""
        graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
        outer = getattr(self._thread, "graph", self)
        if outer is not self and graph is not outer:
            return original(layer, *args, **kwargs)  # within a loop or a branch of another layer
        self._thread.graph = graph
        before = 0 if graph is None else len(graph.get_operations())
        try:
            outputs = original(layer, *args, **kwargs)
        finally:
            self._thread.graph = outer
        tensors = [t for t in tf.nest.flatten(outputs) if isinstance(t, tf.Tensor)]
        tensors = [t for t in tensors if t.dtype.is_floating or t.dtype.is_integer]
        if tensors and _rank_is_known():
            path = layer.path or layer.name
            made = [] if graph is None else graph.get_operations()[before:]
            if rank() == 0:
                self.traced[path] = layer, [sources.Operation.of(operation) for operation in made]
            # Calls are numbered while the step is traced, for it tells the outputs in any order.
            tell(functools.partial(self._keep, path, rank(), next(self._numbers)), *tensors)
        return outputs

    def _keep(self, path: str, rank: int, number: int, *outputs: np.ndarray) -> None:
        if self.keep:
            with self._lock:
                call = Call(path, tuple(np.array(output) for output in outputs))
                self._found.setdefault(rank, {})[number] = call


def differences(
    reference: Sequence[Call], by_rank: dict[int, list[Call]], bounds: Sequence[tuple[int, int]]
) -> Table:
    """Compares each call's outputs with those of the same examples on one device.

    Args:
      reference: The calls on one device.
      by_rank: The calls on each replica.
      bounds: For each replica the index of its first example in the batch, and the index past its
        last.

    Returns:
      The differences by the number of the call and the layer's path, up to the first call that the
      replicas make otherwise.
    """
    examples = bounds[-1][1]
    table: Table = {}
    for number, expected in enumerate(reference):
        key = (number, "layer output", expected.path)
        table[key] = 0.0
        for own_rank, calls in by_rank.items():
            first, end = bounds[own_rank]
            if number >= len(calls) or calls[number].path != expected.path:
                return table
            if first == end:
                continue  # a replica without examples computes on a stand-in
            for actual, wanted in zip(calls[number].outputs, expected.outputs, strict=False):
                own = _rows(wanted, first, end, examples)
                if own is not None and own.shape == actual.shape:
                    scale = largest([wanted])
                    apart = difference(actual, own, scale)
                    table[key] = max(table[key], apart)
    return table


def _rows(output: np.ndarray, first: int, end: int, examples: int) -> np.ndarray | None:
    """Returns the rows of some examples in an output; None if axis 0 is not that of examples."""
    if output.ndim == 0 or output.shape[0] % examples:
        return None
    each = output.shape[0] // examples
    return output[first * each : end * each]


def _rank_is_known() -> bool:
    return tf.distribute.get_replica_context() is not None
