"""Replicated results with a batch's length, sharded again: replicated is for one operation.

A slice sends nothing. The whole is kept beside it, and made of what is made of it, until an
operation that costs anything: where another one needs it whole, nothing is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.marks import BOUNDARY
from tfdp.partition.program_record import PRODUCTS
from tfdp.partition.rules.filling import layout_of_sizes
from tfdp.partition.rules.registry import Step
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor

if TYPE_CHECKING:
    from tfdp.partition.emit.writer import Writer
    from tfdp.partition.replica_program import ProgramBuilder

_NO_VALUES = (tf.resource, tf.variant)


def of_gathered(step: Step) -> Step | None:
    """Returns the operation on gathered tensors that were resharded; None: on shards alone."""
    if step.op.is_stateful or step.op.type in (*PRODUCTS, BOUNDARY) or not _is_of_values(step):
        return None
    if not any(map(_is_resharded, step.inputs)) or not all(
        tensor.layout == REPLICATED or _is_resharded(tensor) for tensor in step.inputs
    ):
        return None
    wholes = []
    for tensor in step.inputs:
        assert tensor.replicated is not None
        wholes.append(Tensor(tensor.replicated, REPLICATED, tensor.shape, tensor.entries))
    return Step(step.walk, step.op, wholes)


def follow(step: Step, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Notes which replicated results are of a batch's examples, and shards those that can be.

    Args:
      step: The operation, written.
      inputs: What it was given.
      results: What it gave.
    """
    if not _is_of_values(step):
        return
    wholes = [each for each in results if each.layout == REPLICATED]
    cause = next((each.cause for each in inputs if _is_of_batch(each)), None)
    step.is_after |= cause is not None and 0 < len(wholes) == len(results)
    step.cause = step.cause or cause or next((each.cause for each in wholes if each.cause), None)
    if step.cause is None:
        return
    for tensor in wholes:
        tensor.cause = step.cause
        layout = sharding_of(step.program, step.writer, tensor.shape)
        if layout is not None and step.program.num_replicas > 1:
            tensor.local = step.sliced(tensor.local, tensor, layout)
            tensor.layout = layout


def sharding_of(
    program: ProgramBuilder, writer: Writer, shape: Sequence[SizeLike | None] | None
) -> Sharded | None:
    """Returns the shard of the first axis that certainly has a multiple of a batch's length."""
    for axis, size in enumerate(shape or ()):
        fixed = [each for each in program.places if not axis and each.length == size]
        layout = Sharded(0, fixed[0]) if fixed else layout_of_sizes([size])
        if layout is not None and program.knows(writer, layout.inner):
            return program.latest_layouts.get((layout.batch, layout.length), layout).at(axis)
    return None


def _is_of_values(step: Step) -> bool:
    """Returns whether an operation computes values of values, and calls no function."""
    tensors = (*step.op.inputs, *step.op.outputs)
    return all(each.dtype not in _NO_VALUES for each in tensors) and not any(
        step.op.node.attr[name].HasField("func") for name in step.op.node.attr
    )


def _is_of_batch(tensor: Tensor) -> bool:
    return tensor.cause is not None and tensor.layout == REPLICATED and tensor.rank != 0


def _is_resharded(tensor: Tensor) -> bool:
    return tensor.cause is not None and tensor.sharded is not None and tensor.replicated is not None
