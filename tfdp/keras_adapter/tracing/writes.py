"""Values that a replica writes into a variable: how, in the graph, they depend on its own value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# Operations that change the form of a value, but not what it adds up to.
_FORMS = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "EnsureShape")
_SUMS = ("AddV2", "Add", "AddN")
_SCATTERED = ("TensorScatterAdd", "TensorScatterSub")
_SHAPES = ("VariableShape", "VarIsInitializedOp")
_SELECTS = ("SelectV2", "Select")


def adds_to(handle: tf.Tensor, value: tf.Tensor) -> bool:
    """Returns whether `value` is a variable's own, plus or minus what does not depend on it.

    Args:
      handle: The handle of one replica's copy of the variable.
      value: A tensor of the graph that is being traced.
    """
    cone = _computed_from(handle, value.graph)

    def adds(tensor: tf.Tensor) -> bool:
        op = tensor.op
        if op not in cone:
            return False
        if op.type == "ReadVariableOp":
            return True
        own = [each.op in cone for each in op.inputs]
        if op.type in _SUMS:
            return sum(own) == 1 and adds(op.inputs[own.index(True)])
        if op.type in ("Sub", *_FORMS, *_SCATTERED):
            return not any(own[1:]) and adds(op.inputs[0])
        if op.type in _SELECTS:
            return not own[0] and all(adds(each) for each in op.inputs[1:])
        return False

    return adds(value)


def depends_on(handle: tf.Tensor, value: tf.Tensor) -> bool:
    """Returns whether `value` was, or may have been, computed from the variable's own."""
    return value.op in _computed_from(handle, value.graph)


def _computed_from(handle: tf.Tensor, graph: Any) -> set[tf.Operation]:
    """Returns the graph's operations that are, or may be, given the variable's value.

    All results of a function or a branch that knows the variable count, and so do all arguments of
    a function whose caller has read it.
    """
    captures = list(getattr(graph, "captures", ()))
    inside = _inside(handle, graph)
    reached = [] if inside is None else inside.consumers()
    begun = [op for op in reached if op.type not in _SHAPES]
    outer = getattr(graph, "outer_graph", None)
    if outer is not None and (above := _computed_from(handle, outer)):
        captured = {id(inner) for _, inner in captures}
        given = [value for value in graph.inputs if id(value) not in captured]
        begun += [value.op for value in given if value.dtype != tf.resource]
        begun += [inner.op for value, inner in captures if getattr(value, "op", None) in above]
    return _after(begun)


def _inside(handle: Any, graph: Any) -> tf.Tensor | None:
    """Returns the tensor by which `graph` knows `handle`, perhaps through outer graphs, or None."""
    for outer, inner in getattr(graph, "captures", ()):
        if outer is handle or (
            tf.is_symbolic_tensor(outer) and _inside(handle, outer.graph) is outer
        ):
            return inner
    return None


def _after(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns the operations themselves and all that depend on their outputs."""
    reached: set[tf.Operation] = set()
    left = list(ops)
    while left:
        op = left.pop()
        if op not in reached:
            reached.add(op)
            left += [each for output in op.outputs for each in output.consumers()]
    return reached
