"""Operations that read the shape of a tensor, or give it another: the batch's axis moves along."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Listed, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_shapes import (
    axes_of,
    is_nonzero,
    reshaped,
    squeezed,
)
from tfdp.partition.shape_inference.known_values import evaluate
from tfdp.partition.sizes import divided, product
from tfdp.partition.tensors import Tensor


@rule("Rank", "Shape", "ShapeN", "Size", always=True, partial=True)
def sizes(step: Step) -> Results:
    """Takes any layout, and gives the global tensor's sizes, replicated. Sends nothing."""
    if any(each.layout == LOCAL or isinstance(each.layout, Listed) for each in step.inputs):
        return None
    if any(tensor.rank is None for tensor in step.inputs):
        if step.op.type != "Rank" and any(tensor.sharded for tensor in step.inputs):
            return None
        return step.results(step.emit(step.inputs), REPLICATED)
    outputs = [
        _sizes(step, tensor, output.dtype)
        for tensor, output in zip(step.inputs, step.op.outputs, strict=True)
    ]
    return step.results(outputs, REPLICATED, entries=evaluate(step.op, step.inputs))


def _sizes(step: Step, tensor: Tensor, dtype: tf.DType) -> Output:
    write = step.write
    if step.op.type == "Rank":
        return write.constant(tensor.rank, dtype)
    sizes = tensor.dims()
    if tensor.sharded is not None or all(isinstance(size, int) for size in sizes):
        vector = write.pack(
            [size if isinstance(size, int) else step.size(size) for size in sizes], dtype
        )
    else:
        vector = write.shape(tensor.local, dtype)
    return write.reduce("Prod", vector, [0]) if step.op.type == "Size" else vector


@rule("BroadcastGradientArgs", always=True)
def broadcast_gradient_axes(step: Step) -> Results:
    """Takes whole shapes, and gives axes as constants where they are known. Sends nothing.

    Computed when the step runs, they would be others where a batch has one example.
    """
    if any(tensor.layout != REPLICATED for tensor in step.inputs):
        return None
    found = evaluate(step.op, step.inputs)
    if found is None or any(axes is None for axes in found):
        return None
    axes = [[] if each is None else list(each) for each in found]
    outputs = [
        step.write.constant(np.array(each, np.int64), output.dtype)
        for each, output in zip(axes, step.op.outputs, strict=True)
    ]
    return step.results(outputs, REPLICATED, entries=found)


@rule("Reshape", partial=True)
def reshape(step: Step) -> Results:
    """Keeps a partial, and a shard where one axis of the result has all the batch's. Sends nothing.

    The result's axis has what the batch was merged with as its inner and outer entries.
    """
    tensor, to = step.inputs
    if tensor.sharded is None:
        return partial(step)
    target = step.op.outputs[0].shape
    sizes = reshaped(tensor, to, target)
    if to.layout != REPLICATED or to.shape is None or None in to.shape or sizes is None:
        return None
    said = to.sizes()
    for axis in range(len(sizes)):
        is_inferred = said is not None and isinstance(said[axis], int) and said[axis] == -1
        layout = reshaped_layout(tensor, tensor.sharded, sizes, axis, is_inferred)
        if layout is not None:
            own = to.local if is_inferred else step.shape_with(to, axis, step.entries(layout))
            return step.results(step.emit([tensor, own]), layout)
    return None


def reshaped_layout(
    tensor: Tensor, layout: Sharded, sizes: Any, axis: int, is_inferred: bool
) -> Sharded | None:
    """Returns the shard of a reshaped tensor along an axis, if that has all the batch's entries.

    As rows of numbers, the tensor is [before, batch, after]. The axis has the batch's if `before`
    is the product of the sizes ahead of it and of `outer`, and `after` of `inner` and the sizes
    behind it. One of both, and the axis's own size, imply the other, since the reshape keeps the
    number of elements.
    """
    old, length = tensor.dims(), layout.batch.length
    before = product([layout.outer, *old[: layout.axis]])
    after = product([layout.inner, *old[layout.axis + 1 :]])
    ahead, own, behind = product(sizes[:axis]), sizes[axis], product(sizes[axis + 1 :])
    outer, inner = divided(before, ahead), divided(after, behind)
    if own is None:
        if not is_inferred and not (is_nonzero(ahead) and is_nonzero(behind)):
            return None  # of a tensor without elements, any size may stand there
    elif outer is not None and inner is None:
        inner = divided(own, outer * length)
    elif inner is not None and outer is None:
        outer = divided(own, inner * length)
    if outer is None or inner is None or outer == 0 or inner == 0:
        return None
    if own is not None and own != outer * length * inner:
        return None
    return Sharded(axis, layout.batch, inner, outer)


@rule("Transpose", "ConjugateTranspose", partial=True)
def transpose(step: Step) -> Results:
    """Keeps a partial, and the shard of the batch's axis, wherever it goes. Sends nothing."""
    tensor, order = step.inputs
    if tensor.sharded is None:
        return partial(step)
    axes = axes_of(order, tensor.rank)
    if axes is None or order.layout != REPLICATED:
        return None
    layout = tensor.sharded.at(axes.index(tensor.sharded.axis))
    return step.results(step.emit(step.inputs), layout)


@rule("ExpandDims", partial=True)
def expand_dims(step: Step) -> Results:
    """Keeps a partial, and the shard. Sends nothing."""
    tensor, at = step.inputs
    if tensor.sharded is None or tensor.rank is None:
        return partial(step)
    axes = axes_of(at, tensor.rank + 1)
    if axes is None or at.layout != REPLICATED:
        return None
    axis = tensor.sharded.axis
    layout = tensor.sharded.at(axis + (axes[0] <= axis))
    return step.results(step.emit(step.inputs), layout)


@rule("Squeeze", partial=True)
def squeeze(step: Step) -> Results:
    """Keeps a partial, and the shard of an axis that stays. Sends nothing."""
    (tensor,) = step.inputs
    if tensor.sharded is None:
        return partial(step)
    axes, axis = squeezed(step.op, tensor), tensor.sharded.axis
    if axes is None or axis in axes:
        return None
    # Without a list of axes, a replica's only example would go, too.
    outputs = (
        step.emit([tensor], squeeze_dims=axes) if axes else [step.write.identity(tensor.local)]
    )
    layout = tensor.sharded.at(axis - sum(each < axis for each in axes))
    return step.results(outputs, layout)


@rule("Bitcast")
def bitcast(step: Step) -> Results:
    """Keeps the shard, unless the batch's axis is that of the parts of elements. Sends nothing."""
    (tensor,) = step.inputs
    rank, layout = step.op.outputs[0].shape.rank, tensor.sharded
    if layout is None or rank is None or layout.axis >= rank:
        return None
    return step.results(step.emit([tensor]), layout)


def partial(step: Step) -> Results:
    """Writes an operation that is linear in its first input on the replica's partial of that."""
    tensor, *others = step.inputs
    if tensor.layout != PARTIAL or tensor.replicated is not None:
        return None
    if any(other.layout != REPLICATED for other in others):
        return None
    return step.results(step.emit(step.inputs), PARTIAL)
