"""Operations on text: most compute each element of their result from one element of the text."""

from __future__ import annotations

import tensorflow as tf

from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.elementwise import aligned
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.tensors import Tensor
from tfdp.partition.writing import Output

ELEMENTWISE = [
    "AsString",
    "DecodeBase64",
    "DecodeCompressed",
    "DecodeJSONExample",
    "EncodeBase64",
    "RegexFullMatch",
    "RegexReplace",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StringJoin",
    "StringLength",
    "StringLower",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
    "Substr",
    "UnicodeScript",
    "UnicodeTranscode",
]


@rule(*ELEMENTWISE)
def elementwise(step: Step) -> Results:
    """Keeps the largest operand's cut; a part of the others is taken. Sends nothing."""
    return aligned(step)


@rule("DecodeRaw", "DecodePaddedRaw")
def decode(step: Step) -> Results:
    """Keeps the cut; each text becomes numbers along a new last axis. Sends nothing.

    Texts of unequal lengths, which one device refuses, are refused where a replica has them.
    """
    text, *length = step.inputs
    layout = text.sharded
    if layout is None or text.shape is None or any(each.layout != REPLICATED for each in length):
        return None
    return step.results(step.emit(step.inputs), layout, [[*text.shape, None]])


@rule("ReduceJoin")
def reduce_join(step: Step) -> Results:
    """Keeps the cut of an axis along which nothing is joined. Sends nothing."""
    text, indices = step.inputs
    layout, axes = text.sharded, indices.constant()
    if layout is None or text.shape is None or axes is None or not axes.size:
        return None
    rank = len(text.shape)
    joined = {int(axis) % rank for axis in axes.ravel()}
    if layout.axis in joined:
        return None
    keep = step.op.attr("keep_dims")
    shape = [1 if axis in joined else size for axis, size in enumerate(text.shape)]
    if not keep:
        layout = layout.at(layout.axis - sum(axis < layout.axis for axis in joined))
        shape = [size for axis, size in enumerate(shape) if axis not in joined]
    return step.results(step.emit(step.inputs), layout, [shape])


@rule("DecodeCSV")
def decode_csv(step: Step) -> Results:
    """Keeps the cut of the records in each of their columns. Sends nothing."""
    records, *defaults = step.inputs
    layout = records.sharded
    if layout is None or any(each.layout != REPLICATED for each in defaults):
        return None
    outputs = step.emit(step.inputs)
    return step.results(outputs, layout, [records.shape] * len(outputs))


@rule("ParseExample", "ParseExampleV2")
def parse(step: Step) -> Results:
    """Keeps the cut where all features are dense and of fixed shapes. Sends nothing.

    What else there is, is padded or numbered throughout the batch.
    """
    records, names, *others = step.inputs
    layout = records.sharded
    shapes = [tf.TensorShape(shape) for shape in step.op.attr("dense_shapes")]
    if (
        layout is None
        or records.rank != 1
        or len(step.op.outputs) != len(shapes)
        or not all(shape.is_fully_defined() for shape in shapes)
        or any(each.layout != REPLICATED for each in others)
    ):
        return None
    own = _names(step, names, layout)
    if own is None:
        return None
    outputs = step.emit([records, own, *others])
    sizes = [[*records.dims(), *shape.as_list()] for shape in shapes]
    return step.results(outputs, layout, sizes)


def _names(step: Step, names: Tensor, layout: Sharded) -> Output | None:
    """Returns the replica's part of the records' names, of which there may be none."""
    if names.rank != 1:
        return None
    if names.dim(0) == 0:
        return step.whole(names)
    return step.part(names, layout) if names.dim(0) == layout.length else None
