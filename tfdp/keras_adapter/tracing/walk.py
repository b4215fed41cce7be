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

from tfdp.keras_adapter._tensorflow import (
    FuncGraph,
    add_op_callback,
    function_named,
    remove_op_callback,
)
from tfdp.keras_adapter.tracing.marks import mark_of

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_IFS, _CASES = ("If", "StatelessIf"), ("Case", "StatelessCase")
# Their first input chooses the function.
BRANCHES = (*_IFS, *_CASES)
LOOPS = ("While", "StatelessWhile")
# By the type of an operation that calls functions: the attributes that name the functions, and the
# number of inputs that come before the functions' arguments.
_FUNCTIONS = {
    **dict.fromkeys(_CALLS, (("f",), 0)),
    **dict.fromkeys(_IFS, (("then_branch", "else_branch"), 1)),
    **dict.fromkeys(_CASES, (("branches",), 1)),
    **dict.fromkeys(LOOPS, (("body",), 0)),
}

_thread = threading.local()


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """One call of a function, which tells where the function's arguments come from.

    Attributes:
      arguments: The places of the arguments, by the ids of the function's placeholders.
      call: The operation that calls the function.
      outer: The frame that holds this operation; None in the current trace.
      outputs: The function's results, as tensors of its own graph.
    """

    arguments: dict[int, Place]
    call: Any
    outer: Frame | None
    outputs: list[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A tensor in one call of the function that holds it; without a frame, in the current trace."""

    tensor: Any
    frame: Frame | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The key by which one walk knows the place."""
        return id(self.tensor), id(self.frame)


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation, with one of its outputs.

    Attributes:
      type: TensorFlow's name of the operation's type.
      inputs: The places of the operation's inputs.
      output: The index of the output that was asked for.
      attributes: The operation, which knows its attributes; if it ran eagerly, these by name.
    """

    type: str
    inputs: list[Place]
    output: int
    attributes: Any

    def attribute(self, name: str) -> Any:
        """Returns the attribute called `name`."""
        if isinstance(self.attributes, dict):
            return self.attributes[name]
        return self.attributes.get_attr(name)

    @property
    def is_function(self) -> bool:
        """Whether this is a `tf.function` that ran eagerly, of which nothing more is known."""
        return self.type.startswith(("__inference_", "__forward_"))


def outside(place: Place, known: dict[int, dict[int, Any]] | None = None) -> Place | None:
    """Returns the place of what a function's placeholder was given; None if it is not known.

    Args:
      place: The placeholder's place.
      known: What each graph captures, as found before: by the graph's id the outer tensors, by the
        ids of those inside. What is found is added.
    """
    if place.frame is not None:
        return place.frame.arguments.get(id(place.tensor))
    graph = place.tensor.graph
    if not isinstance(graph, FuncGraph):
        return None
    known = {} if known is None else known
    if id(graph) not in known:
        known[id(graph)] = {id(inside): outer for outer, inside in graph.captures}
    outer = known[id(graph)].get(id(place.tensor))
    return None if outer is None else Place(outer)


class Walk:
    """A reader of the program, from tensors back to what made them; it remembers what it found."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int, int], Frame] = {}
        self._captures: dict[int, dict[int, Any]] = {}

    def made_by(self, place: Place) -> tuple[Place, Node | None]:
        """Finds the operation that made a tensor, through function calls and arguments.

        Returns:
          The place where the tensor was made, and the operation that made it. The operation is None
          if none in the trace made it, as an argument or a value from outside, or if a mark was met
          on the way.
        """
        while True:
            tensor = place.tensor
            if not tf.is_symbolic_tensor(tensor):
                return place, _remembered(tensor)
            op = tensor.op
            if op.type == "Placeholder":
                outer = outside(place, self._captures)
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

    def _inside(self, place: Place) -> Place | None:
        op = place.tensor.op
        called = function_named(op.graph, op.get_attr("f").name)
        graph = getattr(called, "graph", None)
        if graph is None or len(graph.outputs) != len(op.outputs):
            return None
        frame = self.frame(place.frame, op, graph, 0)
        return Place(graph.outputs[place.tensor.value_index], frame)

    def frame(self, outer: Frame | None, op: Any, graph: Any, before: int) -> Frame:
        """Returns one call of `graph` by `op`, whose first `before` inputs are not the graph's."""
        key = (id(op), id(outer), id(graph))
        if key not in self._frames:
            given = [Place(value, outer) for value in op.inputs[before:]]
            named = dict(zip(map(id, graph.inputs), given, strict=False))
            self._frames[key] = Frame(named, op, outer, list(graph.outputs))
        return self._frames[key]

    def places(self, value: Any) -> list[Place]:
        """Returns the places of a tensor of the trace: one for each call of its function."""
        graph = value.graph if tf.is_symbolic_tensor(value) else None
        return [Place(value, frame) for frame in self.calls_of(graph)]

    def calls_of(self, graph: Any) -> list[Frame | None]:
        """Returns the calls of a graph; None for the trace's own, and where there is none."""
        if graph is None or graph is tf.compat.v1.get_default_graph():
            return [None]
        outer = getattr(graph, "outer_graph", None)
        calls = [] if outer is None else _calls(outer.get_operations(), graph)
        return [
            self.frame(frame, op, graph, before)
            for op, before in calls
            for frame in self.calls_of(outer)
        ] or [None]

    def elsewhere(self, place: Place) -> list[Place]:
        """Returns the places of the same value in functions, branches and loops and their callers.

        What a loop is given is in its body the loop variable, which has this value at first only.
        """
        found = []
        value, frame = place.tensor, place.frame
        for op in value.consumers() if tf.is_symbolic_tensor(value) else ():
            for graph, before in _functions(op):
                inner = self.frame(frame, op, graph, before)
                given = zip(graph.inputs, op.inputs[before:], strict=False)
                found += [Place(inside, inner) for inside, outside in given if outside is value]
        if frame is not None:
            results = zip(frame.outputs, frame.call.outputs, strict=False)
            found += [Place(outside, frame.outer) for inside, outside in results if inside is value]
        return found


def _functions(op: Any) -> list[tuple[Any, int]]:
    """Returns the graphs that an operation calls, with the number of inputs before theirs."""
    names, before = _FUNCTIONS.get(op.type, ((), 0))
    named = [function for name in names for function in _listed(op.get_attr(name))]
    called = [function_named(op.graph, function.name) for function in named]
    return [(one.graph, before) for one in called if getattr(one, "graph", None) is not None]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _calls(operations: list[Any], graph: Any) -> list[tuple[Any, int]]:
    return [
        (op, before) for op in operations for called, before in _functions(op) if called is graph
    ]


def users(place: Place) -> list[tuple[Node, list[Place]]]:
    """Returns the operations that were given the value at `place`, with their outputs.

    They are those in the value's own graph or, for an eager value, those that the calling thread
    remembers.
    """
    value, frame = place.tensor, place.frame
    if tf.is_symbolic_tensor(value):
        return [
            (
                Node(op.type, [Place(given, frame) for given in op.inputs], 0, op),
                [Place(output, frame) for output in op.outputs],
            )
            for op in value.consumers()
        ]
    nodes = (getattr(_thread, "nodes", None) or {}).values()
    return [
        (node, [Place(output)])
        for output, node in nodes
        if any(given.tensor is value for given in node.inputs)
    ]


def is_result_elsewhere(place: Place) -> bool:
    """Returns whether a value is the result of a function that nothing in the trace calls."""
    value = place.tensor
    if place.frame is not None or not tf.is_symbolic_tensor(value):
        return False
    graph = value.graph
    results = getattr(graph, "outputs", ())
    return graph is not tf.compat.v1.get_default_graph() and any(value is one for one in results)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Remembers the operations that run eagerly within, in the calling thread, with all tensors."""
    outer = getattr(_thread, "nodes", None)
    nodes: dict[int, tuple[Any, Node]] = {}
    _thread.nodes = nodes

    def note(kind: Any, inputs: Any, attributes: Any, outputs: Any, *_: Any, **__: Any) -> None:
        given = [Place(value) for value in inputs]
        pairs = iter(attributes or ())
        named = {_text(name): value for name, value in zip(pairs, pairs, strict=False)}
        for index, value in enumerate(outputs or ()):  # a placeholder has none
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
