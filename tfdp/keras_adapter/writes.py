"""What the traced graph says of a value that a replica writes into a variable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Change the form of a value, not what it adds up to.
_FORMS = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "EnsureShape")
_SUMS = ("AddV2", "Add", "AddN")
_SCATTERED = ("TensorScatterAdd", "TensorScatterSub")
_SELECTS = ("SelectV2", "Select")

# Begin nothing that differs between replicas: what has no other inputs than these is alike on all.
_ALIKE = ("Const", "ReadVariableOp", "VarHandleOp")


def adds_to(handle: tf.Tensor, value: tf.Tensor) -> bool:
    """Whether `value` is a variable's own, plus or minus what does not depend on it.

    Args:
      handle: The variable's, one replica's.
      value: A tensor of the graph that is being traced.
    """
    cone = _after(_reads(handle, value.graph))

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
    """Whether `value` was computed from the variable's own."""
    return value.op in _after(_reads(handle, value.graph))


def may_differ(value: tf.Tensor) -> bool:
    """Whether replicas may have different ones: it comes from more than variables and constants."""
    seen, left = set(), [value.op]
    while left:
        op = left.pop()
        if op in seen or op.type in _ALIKE:
            continue
        seen.add(op)
        inputs = [each.op for each in op.inputs]
        is_handle = op.type == "Placeholder" and op.outputs[0].dtype == tf.resource
        if not inputs and not is_handle:
            return True
        left += inputs
    return False


def _reads(handle: tf.Tensor, graph: tf.Graph) -> Iterator[tf.Operation]:
    inside = _inside(handle, graph)
    if inside is not None:
        yield from (op for op in inside.consumers() if op.type == "ReadVariableOp")


def _inside(handle: Any, graph: Any) -> tf.Tensor | None:
    """The tensor by which `graph` knows `handle`, which may have come through outer graphs."""
    for outer, inner in getattr(graph, "captures", ()):
        if outer is handle or (
            tf.is_symbolic_tensor(outer) and _inside(handle, outer.graph) is outer
        ):
            return inner
    return None


def _after(ops: Iterator[tf.Operation]) -> set[tf.Operation]:
    """The operations themselves, and all that take what they give."""
    reached: set[tf.Operation] = set()
    left = list(ops)
    while left:
        op = left.pop()
        if op not in reached:
            reached.add(op)
            left += [each for output in op.outputs for each in output.consumers()]
    return reached
