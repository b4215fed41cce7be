"""Gradients of convolutions and of pooling, and what else is done with a batch of images.

Convolutions and pooling themselves keep the shards of their images: rows of `rule_table.TABLE`.
"""

import dataclasses
import math

import tensorflow as tf

from tfdp.partition.layouts import PARTIAL, REPLICATED
from tfdp.partition.rules.operand_layouts import on_rows, partials
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import on_first
from tfdp.partition.sizes import divided


@rule(
    "AvgPool3DGrad",
    "AvgPoolGrad",
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
)
def sized(step: Step) -> Results:
    """Keeps the rows of the gradient, or of what is convolved back. Sends nothing."""
    sizes, last = step.inputs[0], len(step.inputs) - 1
    if sizes.layout != REPLICATED or sizes.rank != 1 or not isinstance(sizes.dim(0), int):
        return None
    found = on_rows(step, {last: 0})
    if found is None:
        return None
    layout, operands = found
    if sizes.dim(0) == step.inputs[last].rank:  # else it is the size of an image
        operands[0] = step.shape_with(sizes, 0, step.entries(layout))
    return step.results(step.emit(operands), layout)


@rule(
    "Conv2DBackpropFilter",
    "Conv2DBackpropFilterV2",
    "Conv3DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
    "Dilation2DBackpropFilter",
)
def of_filters(step: Step) -> Results:
    """Gives a partial. Sends nothing."""
    found = on_rows(step, {0: 0, 2: 0})
    if found is None:
        return None
    layout, operands = found
    return step.results(partials(step, layout, operands, [0, 2]), PARTIAL)


@rule("FractionalAvgPool", "FractionalMaxPool", always=True)
def fractional(step: Step) -> Results:
    """Pools on the first replica where regions are drawn anew, and all get what it gives.

    Otherwise it is computed on the gathered batch.
    """
    op = step.op
    for sequence in op.outputs[1:]:  # TensorFlow's shapes are those of the pooled axes, 1 too short
        sequence.shape = tf.TensorShape([None])
    is_fixed = op.attr("deterministic") and (op.attr("seed") or op.attr("seed2"))
    return None if is_fixed else on_first(step)


@rule("SpaceToBatch", "SpaceToBatchND")
def space_to_batch(step: Step) -> Results:
    """Keeps the rows; each place within a block has a block of them. Sends nothing."""
    blocks, found = _places(step), on_rows(step, {0: 0})
    if blocks is None or found is None:
        return None
    sharding, operands = found
    layout = dataclasses.replace(sharding, outer=sharding.outer * blocks)
    return step.results(step.emit(operands), layout)


@rule("BatchToSpace", "BatchToSpaceND")
def batch_to_space(step: Step) -> Results:
    """Keeps the rows, of which each place within a block has a block. Sends nothing."""
    layout, blocks = step.inputs[0].sharded, _places(step)
    if layout is None or layout.axis != 0 or blocks is None:
        return None
    outer = divided(layout.outer, blocks)
    if outer is None:
        return None
    operands = [step.inputs[0].local, *(step.replicated(each) for each in step.inputs[1:])]
    return step.results(step.emit(operands), dataclasses.replace(layout, outer=outer))


def _places(step: Step) -> int | None:
    """Returns the number of places within a block, where the trace knows it."""
    if step.op.type in ("SpaceToBatch", "BatchToSpace"):
        return int(step.op.attr("block_size")) ** 2
    sizes = step.inputs[1].constant()
    return None if sizes is None else math.prod(int(size) for size in sizes.ravel())
