"""Indices by which each example names itself, as `tf.stack([tf.range(n), chosen], 1)` has them.

Their first coordinate counts the examples. What they index of a tensor that is sharded along its
first axis is a replica's own, so nothing is sent.
"""

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, Sharded
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.registry import Step
from tfdp.partition.source import SourceOp, SourceTensor

_SAME = ("Identity", "StopGradient", "PreventGradient", "EnsureShape")
_WIDE = (tf.int32, tf.int64)


def own_places(step: Step, position: int, layout: Sharded | None) -> Output | None:
    """Returns a replica's part of indices, whose first coordinate then counts its own examples.

    None: it is not certain that each example names itself.

    Args:
      step: The operation.
      position: Which of its inputs the indices are.
      layout: The shard of what is indexed.
    """
    indices, source = step.inputs[position], step.op.inputs[position]
    if layout is None or (layout.axis, layout.inner, layout.outer) != (0, 1, 1):
        return None
    depth = indices.shape[-1] if indices.shape else None
    if not (isinstance(depth, int) and (indices.rank or 0) > 1 and indices.dtype in _WIDE):
        return None
    if indices.layout == LOCAL or not fits(indices, layout) or not _counts_in_front(source):
        return None
    write = step.write
    first = write.pack([step.start(layout), *[0] * (depth - 1)], indices.dtype)
    return write.subtract(part(step, indices, layout), first)


def _counts_in_front(source: SourceTensor) -> bool:
    """Returns whether the first of the last axis' entries is the place along the first axis."""
    op, rank = _origin(source), source.shape.rank
    if op.type == "Pack" and rank is not None:
        return op.attr("axis") % rank == rank - 1 != 0 and _counts(op.inputs[0])
    if op.type == "ConcatV2" and rank is not None:
        axis, column = _constant(op.inputs[-1]), op.inputs[0]
        is_last = axis is not None and int(axis) % rank == rank - 1 != 0
        return is_last and column.shape.rank == rank and column.shape[-1] == 1 and _counts(column)
    return rank is not None and source.shape[-1] == 1 and _counts(source)


def _counts(source: SourceTensor) -> bool:
    """Returns whether each entry of a tensor is its place along the first axis."""
    op = _origin(source)
    if op.type == "Range":
        start, delta = _constant(op.inputs[0]), _constant(op.inputs[2])
        return start is not None and delta is not None and (int(start), int(delta)) == (0, 1)
    if op.type == "ExpandDims":
        axis, rank = _constant(op.inputs[1]), source.shape.rank
        return axis is not None and rank is not None and int(axis) % rank > 0 and _counts_in(op)
    if op.type == "Reshape":
        return _is_column(op) and _counts_in(op)
    if op.type == "StridedSlice":
        masks = [op.attr(f"{name}_mask") for name in ("begin", "end", "new_axis", "shrink_axis")]
        strides = _constant(op.inputs[3])
        takes_all = masks[0] & masks[1] & 1 and masks[2:] == [2, 0] and not op.attr("ellipsis_mask")
        is_plain = strides is not None and strides.tolist() == [1, 1]
        return bool(takes_all and is_plain) and _is_column(op) and _counts_in(op)
    return op.type == "Tile" and _repeats_once(op.inputs[1]) and _counts_in(op)


def _counts_in(op: SourceOp) -> bool:
    return _counts(op.inputs[0])


def _is_column(op: SourceOp) -> bool:
    """Returns whether an operation makes a column of a vector."""
    shape = op.outputs[0].shape
    return op.inputs[0].shape.rank == 1 and shape.rank == 2 and shape[1] == 1


def _repeats_once(multiples: SourceTensor) -> bool:
    """Returns whether multiples repeat nothing along the first axis."""
    op = _origin(multiples)
    if op.type == "Pack":
        first = _constant(op.inputs[0])
        return first is not None and int(first) == 1
    value = _constant(multiples)
    return value is not None and int(value[0]) == 1


def _origin(source: SourceTensor) -> SourceOp:
    """Returns the operation that made a tensor, before whole numbers changed their width."""
    op = source.op
    while op.type in _SAME or (op.type == "Cast" and op.inputs[0].dtype in _WIDE and _is_wide(op)):
        op = op.inputs[0].op
    return op


def _is_wide(op: SourceOp) -> bool:
    return op.outputs[0].dtype in _WIDE


def _constant(source: SourceTensor) -> np.ndarray | None:
    op = _origin(source)
    return tf.make_ndarray(op.node.attr["value"].tensor) if op.type == "Const" else None
