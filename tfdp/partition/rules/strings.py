"""Operations on text: most compute each element of their result from one element of the text.

A padding row may be an empty text, where no example is at hand. Operations that refuse such a text
get another one in its place, or are computed on the gathered batch where a replica may have no
examples.
"""

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.tensors import Tensor


@rule("DecodeCSV")
def decode_csv(step: Step) -> Results:
    """Keeps the records' shard in each column, unless a replica may have none. Sends nothing."""
    records, *defaults = step.inputs
    layout = records.sharded
    if layout is None or step.program.may_lack_rows(layout.batch):
        return None
    return step.results(step.emit([records, *map(step.replicated, defaults)]), layout)


@rule("ParseExample", "ParseExampleV2")
def parse(step: Step) -> Results:
    """Keeps the shard where all features are dense and of fixed shapes. Sends nothing.

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
    return step.results(step.emit([records, own, *others]), layout)


def _names(step: Step, names: Tensor, layout: Sharded) -> Output | None:
    """Returns the replica's part of the records' names, of which there may be none."""
    if names.rank != 1:
        return None
    if names.dim(0) == 0:
        return step.replicated(names)
    return step.part(names, layout) if names.dim(0) == layout.length else None
