"""The traced program, read backwards: which operation made a tensor, and from what.

A walk goes through calls of `tf.function`s, into what was traced there, and out of a function that
is being traced into the one that surrounds it. Operations that ran eagerly are known within
`remembering`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._tensorflow import FuncGraph, add_op_callback, remove_op_callback
from tfdp.keras_adapter.provenance import mark_of

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")

_thread = threading.local()


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """A call of a function: where the function's arguments come from.

    Attributes:
      arguments: By the id of the function's placeholder.
    """

    arguments: dict[int, Place]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A tensor in the call of a function that holds it; without a frame, in the current trace."""

    tensor: Any
    frame: Frame | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What names it in one walk."""
        return id(self.tensor), id(self.frame)


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation.

    Attributes:
      type: TensorFlow's name of it.
      inputs: What it was given.
      output: Which of its outputs was asked for.
      attributes: Its attributes by name.
    """

    type: str
    inputs: list[Place]
    output: int
    attributes: Any

    def attribute(self, name: str) -> Any:
        """One of its attributes."""
        if isinstance(self.attributes, dict):
            return self.attributes[name]
        return self.attributes.get_attr(name)


class Walk:
    """Reads the program back from tensors; what one walk finds, it finds once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], Frame] = {}
        self._captures: dict[int, dict[int, Any]] = {}

    def made_by(self, place: Place) -> tuple[Place, Node | None]:
        """The place itself, looked for in the functions that hold it, and what made it.

        Returns:
          The tensor that `place` is, past function calls and arguments; and its operation, or None
          for a tensor that no operation of the trace made: an argument, or a value from outside.
        """
        while True:
            tensor = place.tensor
            if not tf.is_symbolic_tensor(tensor):
                return place, _remembered(tensor)
            op = tensor.op
            if op.type == "Placeholder":
                outer = self._outside(place)
                if outer is None:
                    return place, None
                place = outer
            elif op.type in _CALLS and (inner := self._inside(place)) is not None:
                place = inner
            elif op.type == "IdentityN":
                place = Place(op.inputs[tensor.value_index], place.frame)
            else:
                inputs = [Place(value, place.frame) for value in op.inputs]
                return place, Node(op.type, inputs, tensor.value_index, op)
            if mark_of(place.tensor) is not None:
                return place, None

    def _outside(self, place: Place) -> Place | None:
        if place.frame is not None:
            return place.frame.arguments.get(id(place.tensor))
        graph = place.tensor.graph
        if not isinstance(graph, FuncGraph):
            return None
        if id(graph) not in self._captures:
            pairs = graph.captures
            self._captures[id(graph)] = {id(inside): outer for outer, inside in pairs}
        outer = self._captures[id(graph)].get(id(place.tensor))
        return None if outer is None else Place(outer)

    def _inside(self, place: Place) -> Place | None:
        op = place.tensor.op
        called = op.graph._get_function(op.get_attr("f").name)
        graph = getattr(called, "graph", None)
        if graph is None or len(graph.outputs) != len(op.outputs):
            return None
        key = (id(op), id(place.frame))
        if key not in self._frames:
            given = [Place(value, place.frame) for value in op.inputs]
            named = zip((id(placeholder) for placeholder in graph.inputs), given, strict=True)
            self._frames[key] = Frame(dict(named))
        return Place(graph.outputs[place.tensor.value_index], self._frames[key])


def users(value: Any) -> list[tuple[Node, list[Any]]]:
    """The operations that were given `value`, and what they gave.

    They are those in its own graph or, of a value that is not of a graph, those in the thread.
    """
    if tf.is_symbolic_tensor(value):
        consumers = value.consumers()
        return [
            (Node(op.type, [Place(given) for given in op.inputs], 0, op), list(op.outputs))
            for op in consumers
        ]
    nodes = [(node, [output]) for output, node in (getattr(_thread, "nodes", None) or {}).values()]
    return [user for user in nodes if any(given.tensor is value for given in user[0].inputs)]


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Remembers what runs eagerly within, in the calling thread, with all tensors."""
    outer = getattr(_thread, "nodes", None)
    nodes: dict[int, tuple[Any, Node]] = {}
    _thread.nodes = nodes

    def note(kind: Any, inputs: Any, attributes: Any, outputs: Any, *_: Any, **__: Any) -> None:
        given = [Place(value) for value in inputs]
        pairs = iter(attributes or ())
        named = {_text(name): value for name, value in zip(pairs, pairs, strict=False)}
        for index, value in enumerate(outputs or ()):  # none of a placeholder
            nodes[id(value)] = (value, Node(_text(kind), given, index, named))

    add_op_callback(note)
    try:
        yield
    finally:
        remove_op_callback(note)
        _thread.nodes = outer


def _remembered(tensor: Any) -> Node | None:
    found = (getattr(_thread, "nodes", None) or {}).get(id(tensor))
    return None if found is None else found[1]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
