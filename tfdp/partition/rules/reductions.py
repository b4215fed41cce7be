"""Reductions: within the examples each replica reduces its own; over the batch they are combined.

A mean over the batch and its variance come from one sum.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.moment_patterns import Moments
from tfdp.partition.program_record import Content
from tfdp.partition.rules.operand_layouts import can_be_summed, is_waiting
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor

_HALVES = (tf.float16, tf.bfloat16)


@rule("Sum", partial=True)
def total(step: Step) -> Results:
    """Keeps a shard of another axis; over the batch, and of partials, gives a partial.

    Sends nothing then.

    A scalar in half precision is summed in float32, as one device does, and a small whole number as
    such: each replica sends its result.
    """
    tensor, axes = step.inputs
    if is_waiting(tensor):
        return _of_partial(step)
    found = _reduced(step)
    if found is None:
        return None
    layout, reduced = found
    if layout.axis not in reduced:
        return _rows(step, layout, reduced)
    dtype = tensor.dtype
    if dtype in _HALVES and _is_scalar(step):
        (wide,) = step.emit([step.write.cast(tensor.local, tf.float32), axes], T=tf.float32)
        return _met(step, layout, wide, "Sum")
    if not can_be_summed(dtype):
        return _met(step, layout, step.emit([tensor, axes])[0], "Sum")
    return step.results([step.masked(step.emit([tensor, axes])[0], layout)], PARTIAL)


@rule("Mean", partial=True)
def mean(step: Step) -> Results:
    """Keeps a shard of another axis; over the batch, and of partials, gives a partial.

    Sends nothing then.

    The partial is the sum, in float32 or wider, divided by the number of the whole batch's entries.
    A scalar in half precision is rounded to it once, as one device does: each replica sends it in
    float32. A mean with its variance is whole, and so is that: see `mean_of`.
    """
    tensor = step.inputs[0]
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return None
    if is_waiting(tensor):
        return _of_partial(step)
    found = _reduced(step)
    if found is None:
        return None
    layout, reduced = found
    if layout.axis not in reduced:
        return _rows(step, layout, reduced)
    write = step.write
    if step.moments is not None and can_be_summed_at_once(step, layout):
        whole = step.moments.variance
        if whole is None:
            entries = _count(step, tensor, reduced, tf.float64)
            whole = mean_of(step, step.moments, layout, reduced, entries)
        return step.results([whole], REPLICATED)
    wide = tf.float32 if tensor.dtype in _HALVES else tensor.dtype
    local = write.reduce("Sum", write.cast(tensor.local, wide), reduced, _keeps_axes(step))
    count = _count(step, tensor, reduced, wide)
    if tensor.dtype in _HALVES and _is_scalar(step):
        return _met(step, layout, write.divide(local, count), "Sum")
    # The mean of no examples is no number, as on one device: what is divided is masked.
    local = write.divide(step.masked(local, layout), count)
    return step.results([write.cast(local, tensor.dtype)], PARTIAL)


@rule("Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def meeting_reduction(step: Step) -> Results:
    """Keeps a shard of another axis. Over the batch each replica sends its result to all."""
    found = _reduced(step)
    if found is None:
        return None
    if step.op.type == "EuclideanNorm" and step.inputs[0].dtype.is_integer:  # it is rounded
        return None
    layout, reduced = found
    if layout.axis not in reduced:
        return _rows(step, layout, reduced)
    (local,) = step.emit(step.inputs)
    return _met(step, layout, local, step.op.type)


@rule("L2Loss")
def l2_loss(step: Step) -> Results:
    """Gives a partial of half the sum of squares. Sends nothing.

    In half precision each replica sends its result in float32.
    """
    (tensor,) = step.inputs
    layout = tensor.sharded
    if layout is None:
        return None
    if tensor.dtype in _HALVES:
        (wide,) = step.emit([step.write.cast(tensor.local, tf.float32)], T=tf.float32)
        return _met(step, layout, wide, "Sum")
    return step.results([step.masked(step.emit([tensor])[0], layout)], PARTIAL)


def meeting(
    step: Step, output: Output, type_: str, shape: Sequence[SizeLike | None], why: str = ""
) -> Output:
    """Returns the replicas' results, reduced again: the same whole value on all of them.

    Each replica sends its result to all others.

    Args:
      step: The operation.
      output: The replica's result, in the same shape on all; a replica without examples gives what
        changes no other: zeros for a sum.
      type_: The type of the reduction: "Sum", "Max" or another that `Arithmetic.reduce` knows.
      shape: What is known of the result's shape.
      why: What it is needed for, in words.
    """
    program, write = step.program, step.write
    if program.num_replicas == 1:
        return output
    sizes = [size if isinstance(size, int) else None for size in shape]
    collective = program.communicator.gather(tf.TensorSpec([None, *sizes], output.dtype))
    counts = write.constant([1] * program.num_replicas)
    inputs = [write.expand(output, 0), counts]
    why = why or f"{step.op.type} over the batch"
    contents = [Content.of(output, [program.num_replicas, *shape])]
    (found,) = program.exchange(step.writer, "gather", collective, inputs, step.op, why, contents)
    return write.reduce(type_, found, [0])


def _met(step: Step, layout: Sharded, local: Output, type_: str) -> Results:
    """Reduces the replicas' results to the replicated one, in the dtype of the output."""
    masked = step.masked(local, layout, _neutral(type_, local.dtype))
    met = meeting(step, masked, type_, step.shapes()[0] or ())
    return step.results([step.write.cast(met, step.op.outputs[0].dtype)], REPLICATED)


def _neutral(type_: str, dtype: tf.DType) -> float | bool:
    """Returns what changes no result of a reduction."""
    if type_ in ("Max", "Min"):
        sign = -1 if type_ == "Max" else 1
        limit: int = dtype.min if type_ == "Max" else dtype.max
        return sign * math.inf if dtype.is_floating else limit
    return {"All": True, "Any": False, "Prod": 1}.get(type_, 0)


def _keeps_axes(step: Step) -> bool:
    return bool(step.op.attr("keep_dims"))


def _axes(step: Step) -> list[int] | None:
    """Returns the axes that are reduced, counted from 0; None: they are not known."""
    tensor, axes = step.inputs
    found = axes.constant()
    if found is None or axes.layout != REPLICATED or tensor.rank is None:
        return None
    return sorted({int(axis) % tensor.rank for axis in found.ravel()})


def _reduced(step: Step) -> tuple[Sharded, list[int]] | None:
    """Returns the operand's shard and the axes that are reduced, where both are known."""
    layout, axes = step.inputs[0].sharded, _axes(step)
    return None if layout is None or axes is None else (layout, axes)


def _rows(step: Step, layout: Sharded, axes: Sequence[int]) -> Results:
    """Reduces axes that are not the batch's: none, for one, in gradients of what has one shape."""
    if not axes and step.op.type != "EuclideanNorm":  # which then gives magnitudes
        return step.results([step.write.identity(step.inputs[0].local)], layout)
    before = 0 if _keeps_axes(step) else sum(axis < layout.axis for axis in axes)
    return step.results(step.emit(step.inputs), layout.at(layout.axis - before))


def _of_partial(step: Step) -> Results:
    step.require_sums(step.inputs[1:])
    if step.inputs[1].layout != REPLICATED:
        return None
    return step.results(step.emit(step.inputs), PARTIAL)


def _is_scalar(step: Step) -> bool:
    """Returns whether the result has one entry."""
    shape = step.shapes()[0]
    return shape is not None and all(size == 1 for size in shape)


def _count(step: Step, tensor: Tensor, axes: Sequence[int], dtype: tf.DType) -> Output:
    """Returns how many entries of the global tensor are reduced to one.

    It is multiplied in float64, which holds whole numbers that are too large for int32.
    """
    sizes = [tensor.dim(axis) for axis in axes]
    fixed = math.prod(size for size in sizes if isinstance(size, int))
    count = step.write.constant(fixed, tf.float64)
    for size in sizes:
        if not isinstance(size, int):
            count = step.write.multiply(count, step.write.cast(step.size(size), tf.float64))
    return step.write.cast(count, dtype)


def can_be_summed_at_once(step: Step, layout: Sharded) -> bool:
    """Returns whether moments are from one sum; float64 has no digits to spare for that."""
    is_of_replicas = step.program.num_replicas > 1 and not layout.is_fixed
    return is_of_replicas and step.inputs[0].dtype == tf.float32


def mean_of(
    step: Step,
    moments: Moments,
    layout: Sharded,
    axes: Sequence[int],
    count: Output,
) -> Output:
    """Returns the whole mean of the operation's operand x, and keeps the variance.

    1. Of its n entries of N each replica computes the mean m in float32, and of x - m, which is
       small, the mean d and the norm e.
    2. The replicas sum n/N (m + d, m^2 + 2 m d + e^2/n) in float64: the mean of all x, and that of
       their squares.
    3. The variance is the second less the first's square.

    Float64 has the digits that this difference loses, up to means at which float32 has none for a
    variance; and d has those of the mean that m lacks.

    Args:
      step: The operation.
      moments: What it is one of.
      layout: The operand's shard.
      axes: The axes that are reduced, one of which is sharded.
      count: N, in float64.

    Raises:
      Waiting: The partials are not summed yet.
    """
    write = step.write
    if moments.partial is None:
        shape = step.shapes()[0] or ()
        moments.partial = Tensor(_partial(step, layout, axes, count), PARTIAL, [2, *shape])
    both = step.replicated(moments.partial)
    mean, squares = (write.element(both, index) for index in range(2))
    variance = write.maximum(write.subtract(squares, write.multiply(mean, mean)), 0)
    moments.variance = write.cast(variance, tf.float32)
    return write.cast(mean, tf.float32)


def _partial(step: Step, layout: Sharded, axes: Sequence[int], count: Output) -> Output:
    write, rows, place = step.write, step.inputs[0].local, step.place(layout)
    m = write.reduce("Mean", rows, axes, keep=True)
    rest = write.subtract(rows, m)
    d, e = (write.reduce(kind, rest, axes, keep=True) for kind in ("Mean", "EuclideanNorm"))
    m, d, e = (write.cast(each, tf.float64) for each in (m, d, e))
    share = write.divide(*(write.cast(each, tf.float64) for each in (place.count, place.total)))
    squares = write.divide(write.multiply(e, e), write.multiply(share, count))
    squares = write.add(squares, write.multiply(m, write.add(m, write.multiply(d, 2))))
    # Of no examples they are no numbers, as on one device: what has a share is masked.
    both = step.masked(write.stack([write.add(m, d), squares]), layout)
    return write.multiply(both, share)
