"""Operations that only read the shapes of tensors: the sizes are those of the whole ones."""

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, REPLICATED, Listed
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_values import evaluate
from tfdp.partition.tensors import Tensor


@rule("Rank", "Shape", "ShapeN", "Size", always=True, partial=True)
def sizes(step: Step) -> Results:
    """Takes any layout, and gives the whole tensor's sizes, replicated. Sends nothing."""
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
