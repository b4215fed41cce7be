"""Integer tensors that name rows, such as the indices of sparse or ragged tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdp.partition.layouts import Sharded
from tfdp.partition.sizes import Batch

if TYPE_CHECKING:
    from tfdp.partition.source import SourceOp
    from tfdp.partition.tensors import Tensor

# Indices, of which the first of each names a row; these first ones; and the tensor's shape.
INDICES, ROWS, SHAPE = "indices", "rows", "shape"

# How many entries each row has; and up to each one's end.
LENGTHS, ENDS = "lengths", "ends"

_SAME = ("Identity", "StopGradient", "Cast")
_WIDE = (tf.int32, tf.int64)


@dataclasses.dataclass(frozen=True)
class RowIds:
    """What numbers tell of the rows in which a sparse or a ragged tensor's entries are.

    Attributes:
      batch: The rows' batch.
      entries: The entries' batch: a replica's entries are in its own rows.
      what: What the numbers are.
      complete: Whether each row has an entry.
    """

    batch: Batch
    entries: Batch
    what: str
    complete: bool = False

    def of_shape(self) -> RowIds:
        """Returns what is known of the shape of tensors whose rows are those of the batch."""
        return shape_of(self.batch)


def shape_of(batch: Batch) -> RowIds:
    """Returns what is known of the shape of a tensor whose rows are those of a batch."""
    return RowIds(batch, batch, SHAPE)


def splits_of(batch: Batch, entries: Batch, level: int, depth: int) -> RowIds:
    """Returns what is known of one of the splits of a ragged tensor whose rows are a batch's."""
    return RowIds(batch, entries, f"splits {level} of {depth}")


def own_rows(tensor: Tensor) -> RowIds | None:
    """Returns what a replica's numbers tell of its rows; None: they may name other rows."""
    names = tensor.names
    if names is None or names.what != ROWS or tensor.layout != Sharded(0, names.entries):
        return None
    return names


def pass_on(op: SourceOp, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Tells of an operation's result what is known of its operand, where it leaves that as it is,
    takes the first of all indices, or makes a ragged tensor's splits of them, a step at a time.
    """
    if op.type == "ConcatV2" and len(inputs) == 3:
        names = inputs[1].names
        first = inputs[0].constant()
        if names is not None and names.what == ENDS and first is not None and [*first] == [0]:
            results[0].names = splits_of(names.batch, names.entries, 0, 1)
        return
    names = inputs[0].names if inputs else None
    if names is None or not results:
        return
    if op.type in _SAME and results[0].dtype in _WIDE:
        results[0].names = names
    elif op.type == "StridedSlice" and names.what == INDICES and _is_first_column(op, inputs):
        results[0].names = dataclasses.replace(names, what=ROWS)
    elif op.type == "Reshape" and results[0].layout == inputs[0].layout:
        if inputs[0].rank == results[0].rank == 1:
            results[0].names = names
    elif op.type == "DenseBincount" and names.what == ROWS and _counts_rows(op, inputs, names):
        results[0].names = dataclasses.replace(names, what=LENGTHS)
    elif op.type == "Cumsum" and names.what == LENGTHS and _is_plain(op):
        results[0].names = dataclasses.replace(names, what=ENDS)


def _is_first_column(op: SourceOp, inputs: Sequence[Tensor]) -> bool:
    begin, end, strides = (each.constant() for each in inputs[1:])
    if begin is None or end is None or strides is None or len(begin) != 2:
        return False
    masks = [op.attr(f"{name}_mask") for name in ("new_axis", "ellipsis", "shrink_axis")]
    takes_all = op.attr("begin_mask") & op.attr("end_mask") & 1
    return bool(takes_all and masks == [0, 0, 2] and begin[1] == 0 and strides.tolist() == [1, 1])


def _counts_rows(op: SourceOp, inputs: Sequence[Tensor], names: RowIds) -> bool:
    _, size, weights = inputs
    is_each = size.entries is not None and size.entries[()] == names.batch.length
    return is_each and weights.shape == [0] and not op.attr("binary_output")


def _is_plain(op: SourceOp) -> bool:
    return not op.attr("exclusive") and not op.attr("reverse")
