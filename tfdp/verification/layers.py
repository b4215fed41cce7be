"""What each layer gives in one step, and which layer's outputs part first."""

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
from tfdp.verification import compare, sources
from tfdp.verification.probes import rank, tell


@dataclasses.dataclass(frozen=True)
class Call:
    """What a layer gave when it was called, on one replica."""

    path: str
    outputs: tuple[np.ndarray, ...]


class Calls:
    """The calls of all layers in a step.

    Attributes:
      keep: Whether what is computed now is kept.
      traced: For each path the layer and the operations of its last traced call.
    """

    def __init__(self) -> None:
        self.keep = False
        self.traced: dict[str, tuple[Any, list[sources.Operation]]] = {}
        self._found: dict[int, dict[int, Call]] = {}  # by rank and number
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def by_rank(self) -> dict[int, list[Call]]:
        """For each local replica its calls, in order: those inside come before what holds them."""
        return {
            rank: [call for _, call in sorted(found.items(), key=lambda item: item[0])]
            for rank, found in self._found.items()
        }

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Within it, layers are watched."""
        return hooks.replaced(keras.layers.Layer, "__call__", self._watched)

    def _watched(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """What layers give in a step of `tfdp.verify` is kept."""
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
            # Numbered while the step is traced: it does not tell in order.
            tell(functools.partial(self._keep, path, rank(), next(self._numbers)), *tensors)
        return outputs

    def _keep(self, path: str, rank: int, number: int, *outputs: np.ndarray) -> None:
        if self.keep:
            with self._lock:
                call = Call(path, tuple(np.array(output) for output in outputs))
                self._found.setdefault(rank, {})[number] = call


def differences(
    reference: Sequence[Call], by_rank: dict[int, list[Call]], bounds: Sequence[tuple[int, int]]
) -> compare.Table:
    """How far each call's outputs are from those of the same examples on one device.

    Args:
      reference: The calls on one device.
      by_rank: Those of replicas.
      bounds: For each replica which examples of the batch it has: the first, and past the last.

    Returns:
      By the number of the call and the layer's path; up to where the replicas' calls are others.
    """
    examples = bounds[-1][1]
    table: compare.Table = {}
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
                    scale = compare.largest([wanted])
                    apart = compare.difference(actual, own, scale)
                    table[key] = max(table[key], apart)
    return table


def _rows(output: np.ndarray, first: int, end: int, examples: int) -> np.ndarray | None:
    """The rows of some examples; None where axis 0 is not theirs."""
    if output.ndim == 0 or output.shape[0] % examples:
        return None
    each = output.shape[0] // examples
    return output[first * each : end * each]


def _rank_is_known() -> bool:
    return tf.distribute.get_replica_context() is not None
