"""Padding, and the gradient of mirrored padding."""

import dataclasses
from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.rowwise import has_partials, linear_in
from tfdp.partition.rules.slicing import blocks_in, entries_of
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor


@rule("Pad", "PadV2", partial=True)
def pad(step: Step) -> Results:
    """Keeps the cut where whole blocks of all examples are added; keeps summands. Sends nothing.

    The gradient of taking blocks, as `x` of `tf.concat([x, y], 0)`, adds blocks of zeros.
    """
    tensor, paddings, *fill = step.inputs
    if has_partials(step):
        return _padded_partial(step)
    layout = tensor.sharded
    if layout is None or tensor.rank is None or paddings.entries is None:
        return None
    before, after = paddings.entries[layout.axis]
    first, last = blocks_in(before, layout), blocks_in(after, layout)
    if first is None or last is None:
        return None
    local = step.whole(paddings)
    if first != 0 or last != 0:
        local = _local_paddings(step, paddings, layout, (first, last))
    outputs = step.emit([tensor.local, local, *map(step.whole, fill)])
    wider = dataclasses.replace(layout, outer=layout.outer + first + last)
    return step.results(outputs, wider)


@rule("MirrorPad", "MirrorPadGrad", partial=True)
def mirror_pad(step: Step) -> Results:
    """Keeps the cut where other axes are padded; keeps summands. Sends nothing."""
    tensor, paddings = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout = tensor.sharded
    if layout is None or tensor.rank is None or paddings.entries is None:
        return None
    if any(each != 0 for each in paddings.entries[layout.axis]):
        return None
    return step.results(step.emit([tensor.local, step.whole(paddings)]), layout)


def _padded_partial(step: Step) -> Results:
    """Pads a summand; what it is filled with is added once."""
    tensor, paddings, *fill = step.inputs
    if tensor.layout != PARTIAL or any(each.layout != REPLICATED for each in (paddings, *fill)):
        return None
    operands = [tensor.local, paddings.local, *(step.first_only(each.local) for each in fill)]
    return step.results(step.emit(operands), PARTIAL)


def _local_paddings(
    step: Step, paddings: Tensor, layout: Sharded, blocks: tuple[SizeLike, SizeLike]
) -> Output:
    """Returns the paddings with others for the axis that is cut: the entries of so many blocks."""
    assert paddings.entries is not None
    rows = len(paddings.entries)
    flat = step.write.reshape(step.whole(paddings), [2 * rows])
    values: list[Any] = [
        each if isinstance(each, int) else step.write.element(flat, at)
        for at, each in enumerate(paddings.entries.ravel())
    ]
    values[2 * layout.axis : 2 * layout.axis + 2] = [entries_of(step, layout, n) for n in blocks]
    return step.write.reshape(step.write.pack(values, paddings.dtype), [rows, 2])
