"""Convolutions, pooling, and what else is done with a batch of images."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.layouts import PARTIAL, REPLICATED
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import on_rows, partials
from tfdp.partition.rules.side_effects import on_first
from tfdp.partition.sizes import SizeLike, divided, is_size
from tfdp.partition.tensors import Tensor

# The operand whose shape the result has.
_LIKE = {
    **dict.fromkeys(
        ("AdjustContrastv2", "AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV"), 0
    ),
    **dict.fromkeys(("Conv2DBackpropInputV2", "Conv3DBackpropInput", "Dilation2DBackpropInput"), 0),
    **dict.fromkeys(("DrawBoundingBoxes", "DrawBoundingBoxesV2", "LRN", "LRNGrad"), 0),
    **dict.fromkeys(("FractionalMaxPoolGrad", "MaxPool3DGrad", "MaxPoolGrad", "MaxPoolGradV2"), 0),
    **dict.fromkeys(("MaxPool3DGradGrad", "MaxPoolGradGrad", "MaxPoolGradGradV2"), 1),
    **dict.fromkeys(("ResizeBicubicGrad", "ResizeBilinearGrad", "ScaleAndTranslateGrad"), 1),
    "MaxPoolGradWithArgmax": 0,
}


@rule(
    "AvgPool",
    "AvgPool3D",
    "Conv2D",
    "Conv3D",
    "DepthToSpace",
    "DepthwiseConv2dNative",
    "Dilation2D",
    "ExtractImagePatches",
    "ExtractVolumePatches",
    "LRN",
    "MaxPool",
    "MaxPool3D",
    "MaxPoolV2",
    "ResizeArea",
    "ResizeBicubic",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "ResizeNearestNeighborGrad",
    "ScaleAndTranslate",
    "SpaceToDepth",
)
def of_first(step: Step) -> Results:
    """Keeps the images' rows. Sends nothing."""
    return _by_row(step, [0])


@rule(
    "DrawBoundingBoxes",
    "DrawBoundingBoxesV2",
    "ResizeBicubicGrad",
    "ResizeBilinearGrad",
    "ScaleAndTranslateGrad",
)
def of_first_two(step: Step) -> Results:
    """Keeps the rows of the larger operand, of which the other one has as many. Sends nothing."""
    return _by_row(step, [0, 1])


@rule(
    "FractionalMaxPoolGrad",
    "LRNGrad",
    "MaxPool3DGrad",
    "MaxPool3DGradGrad",
    "MaxPoolGrad",
    "MaxPoolGradGrad",
    "MaxPoolGradGradV2",
    "MaxPoolGradV2",
)
def of_first_three(step: Step) -> Results:
    """Keeps the rows of the largest operand, of which all have as many. Sends nothing."""
    return _by_row(step, [0, 1, 2])


@rule("Conv2DBackpropInputV2", "Conv3DBackpropInput", "Dilation2DBackpropInput")
def of_outer_two(step: Step) -> Results:
    """Keeps the rows of the images or of the gradient; the filter is whole. Sends nothing."""
    return _by_row(step, [0, 2])


@rule("Conv")
def conv(step: Step) -> Results:
    """Keeps a cut of any axis that is no image's. Sends nothing."""
    layout = step.inputs[0].sharded
    if layout is None or layout.axis >= step.op.attr("batch_dims"):
        return None
    return _by_row(step, [0], layout.axis)


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def transform(step: Step) -> Results:
    """Keeps the images' rows, with a transform for each or one for all. Sends nothing."""
    images = step.inputs[0].sharded
    return None if images is None else _by_row(step, [0, 1], broadcast=True)


@rule("MaxPoolWithArgmax")
def with_places(step: Step) -> Results:
    """Keeps the images' rows, unless maxima are numbered through all images. Sends nothing."""
    return None if step.op.attr("include_batch_in_index") else _by_row(step, [0])


@rule("MaxPoolGradWithArgmax", "MaxPoolGradGradWithArgmax")
def of_places(step: Step) -> Results:
    """Keeps rows, unless maxima are numbered through all images. Sends nothing."""
    return None if step.op.attr("include_batch_in_index") else _by_row(step, [0, 1, 2])


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
    cut, operands = found
    if sizes.dim(0) == step.inputs[last].rank:  # else it is the size of an image
        operands[0] = step.shape_with(sizes, 0, step.entries(cut))
    return step.results(step.emit(operands), cut, [_said(sizes, step.inputs[last].rank)])


@rule(
    "Conv2DBackpropFilter",
    "Conv2DBackpropFilterV2",
    "Conv3DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
    "Dilation2DBackpropFilter",
)
def of_filters(step: Step) -> Results:
    """Gives a summand. Sends nothing."""
    found = on_rows(step, {0: 0, 2: 0})
    if found is None:
        return None
    cut, operands = found
    return step.results(partials(step, cut, operands, [0, 2]), PARTIAL)


@rule("AdjustContrastv2", "AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV")
def colors(step: Step) -> Results:
    """Keeps a cut of images; of pixels, where each is changed by itself. Sends nothing."""
    images = step.inputs[0]
    own = 3 if step.op.type == "AdjustContrastv2" else 1
    if images.sharded is None or images.rank is None or images.sharded.axis + own >= images.rank:
        return None
    return _by_row(step, [0], images.sharded.axis)


@rule("CropAndResize")
def crop(step: Step) -> Results:
    """Keeps the rows of boxes, which may be of any images: those are gathered."""
    if step.inputs[1].sharded is None and step.inputs[2].sharded is None:
        return None
    return _by_row(step, [1, 2])


@rule("FractionalAvgPool", "FractionalMaxPool", always=True)
def fractional(step: Step) -> Results:
    """Pools on the first replica where regions are drawn anew, and all get what it gives.

    Otherwise it is computed whole.
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
    cut, operands = found
    layout = dataclasses.replace(cut, outer=cut.outer * blocks)
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
    operands = [step.inputs[0].local, *(step.whole(each) for each in step.inputs[1:])]
    return step.results(step.emit(operands), dataclasses.replace(layout, outer=outer))


def _said(sizes: Tensor, rank: int | None) -> list[SizeLike | None] | None:
    """Returns what is known of the sizes that a vector of so many entries says."""
    said = sizes.sizes()
    if said is None or len(said) != rank:
        return None
    return [size if is_size(size) else None for size in said]


def _places(step: Step) -> int | None:
    """Returns the number of places within a block, where the trace knows it."""
    if step.op.type in ("SpaceToBatch", "BatchToSpace"):
        return int(step.op.attr("block_size")) ** 2
    sizes = step.inputs[1].constant()
    return None if sizes is None else math.prod(int(size) for size in sizes.ravel())


def _by_row(step: Step, operands: Sequence[int], axis: int = 0, broadcast: bool = False) -> Results:
    """Writes an operation whose results have a row for each of the operands' rows."""
    found = on_rows(step, dict.fromkeys(operands, axis), broadcast)
    if found is None:
        return None
    cut, given = found
    like = _LIKE.get(step.op.type)
    shapes = None if like is None else [step.inputs[like].shape]
    return step.results(step.emit(given), cut, shapes)
