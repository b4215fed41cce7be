"""What rules ask of operands: the layout of all, of operations that treat each row on its own."""

import math
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor, static_shape

# What is taken for a size that is known only when the step runs, to tell large from small.
_SOME = 1000

_SUMMED = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
    *(tf.complex64, tf.complex128, tf.int32, tf.int64),
)


def has_partials(step: Step) -> bool:
    return any(tensor.layout == PARTIAL for tensor in step.inputs)


def linear_in(step: Step, index: int) -> Results:
    """Writes an operation that is linear in one input, where that is partial: so is the result.

    None: it is not partial, or the other inputs are not replicated.
    """
    others = [tensor for at, tensor in enumerate(step.inputs) if at != index]
    if step.inputs[index].layout != PARTIAL or any(each.layout != REPLICATED for each in others):
        return None
    return step.results(step.emit(step.inputs), PARTIAL)


def dominant(
    tensors: Sequence[Tensor], rank: int = 0, aligned_right: bool = True
) -> Sharded | None:
    """Returns the shard of the largest of the tensors, as one of their broadcast to `rank` axes."""
    sharded = [tensor for tensor in tensors if tensor.sharded and tensor.shape is not None]
    largest = max(sharded, key=lambda tensor: estimate(tensor.shape), default=None)
    if largest is None or largest.sharded is None:
        return None
    shift = rank - (largest.rank or 0) if aligned_right else 0
    return largest.sharded.at(largest.sharded.axis + shift)


def on_aligned(step: Step, mixed: int = 0) -> tuple[Sharded, list[Output]] | None:
    """Returns what `on_rows` does for operands that are broadcast together.

    Args:
      step: The operation.
      mixed: How many of the last axes it mixes: a shard of these is not kept.

    Returns:
      The shard of the result and the operands; None where `on_rows` gives it.
    """
    ranks = [tensor.rank for tensor in step.inputs if tensor.rank is not None]
    rank = max(ranks, default=0)
    shard = dominant(step.inputs, rank) if len(ranks) == len(step.inputs) else None
    if shard is None or shard.axis + mixed >= rank:
        return None
    axes = {index: shard.axis - rank + own for index, own in enumerate(ranks)}
    places = {index: axis for index, axis in axes.items() if axis >= 0}
    found = on_rows(step, places, broadcast=places)
    return None if found is None else (shard, found[1])


def on_rows(
    step: Step, places: Mapping[int, int], broadcast: Collection[int] = ()
) -> tuple[Sharded, list[Output]] | None:
    """Returns the largest operand's shard, and what a replica gives for each operand.

    Operands without rows are gathered. So are those whose rows are sharded otherwise; the replica's
    part of them is taken.

    Args:
      step: The operation.
      places: The operands with rows: of the number of each the axis of the rows.
      broadcast: The operands that may have one row for all.

    Returns:
      The shard and the operands; None, before anything is written, if no operand is sharded along
      its rows, or if it is not known of one whether it has as many as the others.
    """
    layouts = [
        (estimate(tensor.shape), tensor.sharded)
        for tensor, axis in ((step.inputs[index], axis) for index, axis in places.items())
        if tensor.sharded is not None and tensor.sharded.axis == axis
    ]
    if not layouts or any(step.inputs[index].rank is None for index in places):
        return None
    sharding = max(layouts, key=lambda each: each[0])[1]
    own = {index: sharding.at(axis) for index, axis in places.items()}
    alone = set()
    for index, layout in own.items():
        tensor = step.inputs[index]
        if tensor.layout in (layout, LOCAL):
            continue
        assert tensor.rank is not None
        if layout.axis >= tensor.rank:
            return None
        size = tensor.dim(layout.axis)
        if index in broadcast and size == 1:
            alone.add(index)
        elif size != layout.length:
            return None
    why = "its operands are sharded otherwise"
    operands = [
        tensor.local
        if tensor.layout == LOCAL
        else step.part(tensor, own[index], why)
        if index in own and index not in alone
        else step.replicated(tensor, f"all rows of {step.op.type} need this operand")
        for index, tensor in enumerate(step.inputs)
    ]
    return sharding, operands


def partials(
    step: Step, layout: Sharded, operands: Sequence[Output], contracted: Sequence[int]
) -> list[Output]:
    """Writes an operation that contracts rows; padding rows add zeros to what it gives.

    Args:
      step: The operation, which gives zeros if any of its contracted operands is zeros.
      layout: A shard of the batch.
      operands: What the replica gives for each operand.
      contracted: The numbers of the operands whose rows are contracted.
    """
    operands = list(operands)
    sizes = {index: estimate(step.inputs[index].shape) for index in contracted}
    smallest = min(sizes, key=lambda index: sizes[index])
    if estimate(static_shape(step.op.outputs[0].shape)) <= sizes[smallest]:
        return [step.masked(output, layout) for output in step.emit(operands)]
    operands[smallest] = step.masked(operands[smallest], layout)
    return step.emit(operands)


def local_rows(step: Step, numbers: Tensor, rows: Sharded) -> Output:
    """Returns the numbers of a replica's rows, counted from its own first one.

    What stands in for an entry may name another's row; it gets one of the replica's.
    """
    write, dtype = step.write, numbers.dtype
    own = write.subtract(numbers.local, write.cast(step.start(rows), dtype))
    last = write.cast(write.subtract(step.place(rows).rows, 1), dtype)
    return write.minimum(write.maximum(own, 0), last)


def estimate(shape: Sequence[SizeLike | None] | None) -> int:
    """Returns about how many elements the global tensor has, by which large ones are known."""
    if shape is None:
        return _SOME * _SOME
    return math.prod(size if isinstance(size, int) else _SOME for size in shape)


def can_be_summed(dtype: tf.DType) -> bool:
    """Returns whether replicas can hold partials of a tensor of this dtype."""
    return dtype in _SUMMED


def is_waiting(tensor: Tensor) -> bool:
    """Returns whether a tensor is a partial that is not summed yet."""
    return tensor.layout == PARTIAL and tensor.replicated is None
