"""Slices and paddings, and their gradients: those of slices are paddings.

Along the sharded axis a slice keeps the shard where it takes the same entries of every example:
all, whole blocks of all examples, or every n-th entry. Other axes are sliced as in the program.
"""

import dataclasses
from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.operand_layouts import has_partials, linear_in
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_slices import (
    Taken,
    extents_of,
    is_natural,
    length_of,
    taken_by,
)
from tfdp.partition.sizes import SizeLike, divided, is_size
from tfdp.partition.tensors import Tensor


@dataclasses.dataclass(frozen=True)
class SliceBounds:
    """A slice along the axis that is sharded, which takes of every example the same entries.

    Attributes:
      source: The layout of what is sliced.
      result: The layout of the slice.
      first: The first of the blocks of `source` that it takes.
      offset: The first entry that it takes of each example; None: it takes whole blocks.
    """

    source: Sharded
    result: Sharded
    first: SizeLike = 0
    offset: int | None = None

    @property
    def is_all(self) -> bool:
        """Whether it takes all of the axis."""
        return self.source == self.result


# ---- StridedSlice


@rule("StridedSlice", partial=True)
def strided_slice(step: Step) -> Results:
    """Keeps the shard where every example gives the same entries; keeps partials. Sends nothing."""
    tensor, begin, end, strides = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout = tensor.sharded
    if layout is None or tensor.rank is None:
        return None
    found = taken_by(step.op, tensor.rank, begin, end, strides)
    if found is None:
        return None
    taken, axes = found
    bounds = SliceBounds(layout, layout)
    if layout.axis in taken:
        narrowed = _narrowed(taken[layout.axis], layout)
        if narrowed is None:
            return None
        bounds = narrowed
    spec, attrs = _local_spec(step, taken.get(layout.axis), bounds, begin, end)
    outputs = step.emit([tensor.local, *spec, step.replicated(strides)], **attrs)
    return step.results(outputs, bounds.result.at(axes.index(layout.axis)))


@rule("StridedSliceGrad", partial=True)
def strided_slice_gradient(step: Step) -> Results:
    """Keeps the shard where every example gave the same entries; keeps partials. Sends nothing."""
    shape, begin, end, strides, gradient = step.inputs
    if has_partials(step):
        return linear_in(step, 4)
    layout, rank, sizes = gradient.sharded, length_of(shape), shape.sizes()
    if layout is None or rank is None or sizes is None:
        return None
    found = taken_by(step.op, rank, begin, end, strides)
    if found is None:
        return None
    taken, axes = found
    axis = axes[layout.axis]
    if axis is None:
        return None
    bounds = _widened(taken.get(axis), layout.at(axis), sizes[axis])
    if bounds is None:
        return None
    spec, attrs = _local_spec(step, taken.get(axis), bounds, begin, end)
    local = step.shape_with(shape, axis, step.entries(bounds.source))
    outputs = step.emit([local, *spec, step.replicated(strides), gradient.local], **attrs)
    return step.results(outputs, bounds.source)


def _narrowed(taken: Taken, layout: Sharded) -> SliceBounds | None:
    """Returns the shard of a slice along the axis that a layout shards, if it is one."""
    begin, end = taken.bounds(layout.length)
    if taken.is_index:
        return None
    if taken.stride == 1:
        first, last = blocks_in(begin, layout), blocks_in(end, layout)
        if first is None or last is None or last == first or not is_natural(last - first):
            return None
        return SliceBounds(layout, dataclasses.replace(layout, outer=last - first), first)
    inner = divided(layout.inner, taken.stride)
    if inner is None or end != layout.length or not taken.is_every_nth:
        return None
    return SliceBounds(layout, dataclasses.replace(layout, inner=inner), offset=taken.begin)


def _widened(taken: Taken | None, layout: Sharded, length: Any) -> SliceBounds | None:
    """Returns the shard of which a slice in a layout, along an axis of a length, is the result."""
    if not is_size(length):
        return None
    if taken is None:
        return SliceBounds(layout, layout) if length == layout.length else None
    begin, end = taken.bounds(length)
    if taken.stride == 1:
        first, outer = blocks_in(begin, layout), blocks_in(length, layout)
        if first is None or outer is None or end is None or end - begin != layout.length:
            return None
        return SliceBounds(dataclasses.replace(layout, outer=outer), layout, first)
    if end != length or not taken.is_every_nth or length != layout.length * taken.stride:
        return None
    source = dataclasses.replace(layout, inner=layout.inner * taken.stride)
    return SliceBounds(source, layout, offset=taken.begin)


def _local_spec(
    step: Step, taken: Taken | None, bounds: SliceBounds, begin: Tensor, end: Tensor
) -> tuple[list[Output], dict[str, int]]:
    """Returns `begin` and `end` for what the replica holds, and the masks that differ."""
    begins, ends = step.replicated(begin), step.replicated(end)
    if taken is None:
        return [begins, ends], {}
    bit, at = 1 << taken.position, taken.position
    masks = {name: step.op.attr(name) for name in ("begin_mask", "end_mask")}
    if bounds.is_all:
        return [begins, ends], {name: mask | bit for name, mask in masks.items()}
    if bounds.offset is not None:
        begins = step.shape_with(begin, at, step.write.constant(bounds.offset))
        return [begins, ends], {
            "begin_mask": masks["begin_mask"] & ~bit,
            "end_mask": masks["end_mask"] | bit,
        }
    last = bounds.first + bounds.result.outer
    begins = step.shape_with(begin, at, entries_of(step, bounds.source, bounds.first))
    ends = step.shape_with(end, at, entries_of(step, bounds.source, last))
    return [begins, ends], {name: mask & ~bit for name, mask in masks.items()}


# ---- Slice


@rule("Slice", partial=True)
def slice_(step: Step) -> Results:
    """Keeps the shard of all entries or whole blocks of the axis; keeps partials. Sends nothing."""
    tensor, begin, size = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout, begins, sizes = tensor.sharded, begin.sizes(), size.sizes()
    extents = extents_of(*step.inputs)
    if layout is None or begins is None or sizes is None or extents is None:
        return None
    axis = layout.axis
    first, outer = (blocks_in(each[axis], layout) for each in (begins, extents))
    if first is None or outer is None or outer == 0 or not is_natural(layout.outer - first - outer):
        return None
    local_begin, local_size = step.replicated(begin), step.replicated(size)
    if outer != layout.outer:
        local_begin = step.shape_with(begin, axis, entries_of(step, layout, first))
    if sizes[axis] != -1:
        local_size = step.shape_with(size, axis, entries_of(step, layout, outer))
    outputs = step.emit([tensor.local, local_begin, local_size])
    return step.results(outputs, dataclasses.replace(layout, outer=outer))


# ---- what the rules of this family share


def blocks_in(size: Any, layout: Sharded) -> Any:
    """Returns how many blocks with an entry run of each example are so many entries of an axis.

    None: it is no whole number of blocks, or that is not known.
    """
    blocks = divided(size, layout.batch.length * layout.inner)
    return blocks if blocks is not None and is_natural(blocks) else None


def entries_of(step: Step, layout: Sharded, blocks: SizeLike) -> Output:
    """Returns the number of entries in so many blocks of what the replica holds."""
    if blocks == 0:
        return step.write.constant(0)
    return step.entries(dataclasses.replace(layout, outer=blocks))


@rule("Pad", "PadV2", partial=True)
def pad(step: Step) -> Results:
    """Keeps the shard where whole blocks of all examples are added; keeps partials. Sends nothing.

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
    local = step.replicated(paddings)
    if first != 0 or last != 0:
        local = _local_paddings(step, paddings, layout, (first, last))
    outputs = step.emit([tensor.local, local, *map(step.replicated, fill)])
    wider = dataclasses.replace(layout, outer=layout.outer + first + last)
    return step.results(outputs, wider)


@rule("MirrorPad", "MirrorPadGrad", partial=True)
def mirror_pad(step: Step) -> Results:
    """Keeps the shard where other axes are padded; keeps partials. Sends nothing."""
    tensor, paddings = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout = tensor.sharded
    if layout is None or tensor.rank is None or paddings.entries is None:
        return None
    if any(each != 0 for each in paddings.entries[layout.axis]):
        return None
    return step.results(step.emit([tensor.local, step.replicated(paddings)]), layout)


def _padded_partial(step: Step) -> Results:
    """Pads a partial; what it is filled with is added once."""
    tensor, paddings, *fill = step.inputs
    if tensor.layout != PARTIAL or any(each.layout != REPLICATED for each in (paddings, *fill)):
        return None
    operands = [tensor.local, paddings.local, *(step.first_only(each.local) for each in fill)]
    return step.results(step.emit(operands), PARTIAL)


def _local_paddings(
    step: Step, paddings: Tensor, layout: Sharded, blocks: tuple[SizeLike, SizeLike]
) -> Output:
    """Returns the paddings with others for the sharded axis: the entries of so many blocks."""
    assert paddings.entries is not None
    rows = len(paddings.entries)
    flat = step.write.reshape(step.replicated(paddings), [2 * rows])
    values: list[Any] = [
        each if isinstance(each, int) else step.write.element(flat, at)
        for at, each in enumerate(paddings.entries.ravel())
    ]
    values[2 * layout.axis : 2 * layout.axis + 2] = [entries_of(step, layout, n) for n in blocks]
    return step.write.reshape(step.write.pack(values, paddings.dtype), [rows, 2])
