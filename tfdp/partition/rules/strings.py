"""Operations on text: most compute each element of their result from one element of the text.

A stand-in may be an empty text, where no example is at hand. Operations that refuse such a text get
another one in its place, or are computed whole where a replica may have no examples.
"""

from __future__ import annotations

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.elementwise import aligned, dominant, operand
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_shapes import broadcast_shape
from tfdp.partition.shape_inference.known_text_shapes import ELEMENTWISE
from tfdp.partition.tensors import Tensor

# Of each operation that refuses some texts, one that it accepts.
ACCEPTED = {"DecodeCompressed": "", "DecodeJSONExample": "{}", "StringToNumber": "0"}


@rule(*ELEMENTWISE)
def elementwise(step: Step) -> Results:
    """Keeps the largest operand's cut; a part of the others is taken. Sends nothing."""
    return aligned(step)


@rule(*ACCEPTED)
def decode_elementwise(step: Step) -> Results:
    """Keeps the cut; of an empty batch the stand-in is a text that is accepted. Sends nothing."""
    (text,) = step.inputs
    layout = text.sharded
    if layout is None:
        return None
    accepted = step.filled(text.local, layout, ACCEPTED[step.op.type])
    return step.results(step.emit([accepted]), layout, [text.shape])


@rule("Substr")
def substring(step: Step) -> Results:
    """Keeps the largest operand's cut. Sends nothing.

    Of an empty batch the stand-in's part begins at 0.
    """
    if any(tensor.rank is None for tensor in step.inputs):
        return None
    rank = max(tensor.rank or 0 for tensor in step.inputs)
    layout = dominant(step.inputs, rank)
    if layout is None:
        return None
    text, begin, size = (operand(step, tensor, layout, rank) for tensor in step.inputs)
    if text is None or begin is None or size is None:
        return None
    outputs = step.emit([text, step.filled(begin, layout, 0), size])
    return step.results(outputs, layout, [broadcast_shape(step.inputs, rank)])


@rule("DecodeRaw", "DecodePaddedRaw")
def decode(step: Step) -> Results:
    """Keeps the cut; of an empty batch the stand-in is an empty text. Sends nothing.

    Each text becomes numbers along a new last axis. Texts of unequal
    lengths, which one device refuses, are refused where a replica has them.
    """
    text, *length = step.inputs
    layout = text.sharded
    if layout is None or text.shape is None:
        return None
    accepted = step.filled(text.local, layout, "")
    outputs = step.emit([accepted, *map(step.whole, length)])
    return step.results(outputs, layout, [[*text.shape, None]])


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
    """Keeps the records' cut in each column, unless a replica may have none. Sends nothing."""
    records, *defaults = step.inputs
    layout = records.sharded
    if layout is None or step.program.may_lack_rows(layout.batch):
        return None
    outputs = step.emit([records, *map(step.whole, defaults)])
    return step.results(outputs, layout, [records.shape] * len(outputs))


@rule("ParseExample", "ParseExampleV2")
def parse(step: Step) -> Results:
    """Keeps the cut where all features are dense and of fixed shapes. Sends nothing.

    What else there is, is padded or numbered throughout the batch. Where a replica may have no
    records they are parsed whole.
    """
    records, names, *others = step.inputs
    layout = records.sharded
    shapes = [tf.TensorShape(shape) for shape in step.op.attr("dense_shapes")]
    if (
        layout is None
        or step.program.may_lack_rows(layout.batch)
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
