"""Slices, and the gradients of slices.

Along the axis that is cut a slice keeps the cut where it takes of every example the same entries:
all, whole blocks of all examples, or every n-th entry. Other axes are sliced as in the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference import known_values
from tfdp.partition.sizes import UNKNOWN, Size, SizeLike, divided, is_positive, is_size
from tfdp.partition.tensors import Tensor


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a slice takes of an axis.

    Attributes:
      position: The place of its numbers in the vectors `begin`, `end` and `strides`.
      begin: Where it begins; negative numbers count from the end of the axis.
      end: Where it ends; None: with the axis.
      stride: The distance between two entries that it takes.
      is_index: Whether it takes one entry, and the result does not have the axis.
    """

    position: int
    begin: Any
    end: Any
    stride: Any
    is_index: bool

    @property
    def is_every_nth(self) -> bool:
        """Whether it takes every n-th entry, from one of the first n on."""
        begin, stride = self.begin, self.stride
        return isinstance(begin, int) and isinstance(stride, int) and 0 <= begin < stride

    def bounds(self, length: SizeLike) -> tuple[Any, Any]:
        """Returns where it begins and ends on an axis of a length; None where that is unknown."""
        begin = _bound(self.begin, length)
        return begin, length if self.end is None else _bound(self.end, length)


@dataclasses.dataclass(frozen=True)
class SliceBounds:
    """A slice along the axis that is cut, which takes of every example the same entries.

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
    """Keeps the cut where every example gives the same entries; keeps summands. Sends nothing."""
    tensor, begin, end, strides = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout = tensor.sharded
    if layout is None or tensor.rank is None:
        return None
    found = _taken(step, tensor.rank, begin, end, strides)
    if found is None:
        return None
    taken, axes = found
    cut = SliceBounds(layout, layout)
    if layout.axis in taken:
        narrowed = _narrowed(taken[layout.axis], layout)
        if narrowed is None:
            return None
        cut = narrowed
    spec, attrs = _local_spec(step, taken.get(layout.axis), cut, begin, end)
    outputs = step.emit([tensor.local, *spec, step.whole(strides)], **attrs)
    shape = [1 if axis is None else _extent(tensor.dim(axis), taken.get(axis)) for axis in axes]
    return step.results(outputs, cut.result.at(axes.index(layout.axis)), [shape])


@rule("StridedSliceGrad", partial=True)
def strided_slice_gradient(step: Step) -> Results:
    """Keeps the cut where every example gave the same entries; keeps summands. Sends nothing."""
    shape, begin, end, strides, gradient = step.inputs
    if has_partials(step):
        return linear_in(step, 4)
    layout, rank, sizes = gradient.sharded, length_of(shape), shape.sizes()
    if layout is None or rank is None or sizes is None:
        return None
    found = _taken(step, rank, begin, end, strides)
    if found is None:
        return None
    taken, axes = found
    axis = axes[layout.axis]
    if axis is None:
        return None
    cut = _widened(taken.get(axis), layout.at(axis), sizes[axis])
    if cut is None:
        return None
    spec, attrs = _local_spec(step, taken.get(axis), cut, begin, end)
    local = step.shape_with(shape, axis, step.entries(cut.source))
    outputs = step.emit([local, *spec, step.whole(strides), gradient.local], **attrs)
    return step.results(outputs, cut.source, [[s if is_size(s) else None for s in sizes]])


def _taken(
    step: Step, rank: int, begin: Tensor, end: Tensor, strides: Tensor
) -> tuple[Mapping[int, Taken], Sequence[int | None]] | None:
    """Reads a strided slice of a tensor with `rank` axes.

    Returns:
      What is taken of the axes that the slice names; and of each axis of the result the axis that
      it was before, None for a new one. None: the slice cannot be read.
    """
    count = length_of(strides)
    if count is None or length_of(begin) != count or length_of(end) != count:
        return None
    begins, ends, steps = (each.sizes() or [UNKNOWN] * count for each in (begin, end, strides))

    def masked(name: str, position: int) -> bool:
        return bool(step.op.attr(f"{name}_mask") >> position & 1)

    ellipses = [at for at in range(count) if masked("ellipsis", at)]
    new = [at for at in range(count) if at not in ellipses and masked("new_axis", at)]
    covered = rank - (count - len(ellipses) - len(new))  # the axes that the slice does not name
    if covered < 0 or len(ellipses) > 1:
        return None
    taken: dict[int, Taken] = {}
    axes: list[int | None] = []
    axis = 0
    for at in range(count):
        if at in ellipses:
            axes.extend(range(axis, axis + covered))
            axis += covered
        elif at in new:
            axes.append(None)
        else:
            taken[axis] = Taken(
                at,
                0 if masked("begin", at) else begins[at],
                None if masked("end", at) else ends[at],
                steps[at],
                masked("shrink_axis", at),
            )
            if not taken[axis].is_index:
                axes.append(axis)
            axis += 1
    axes.extend(range(axis, rank))
    return taken, axes


def _narrowed(taken: Taken, layout: Sharded) -> SliceBounds | None:
    """Returns the cut of a slice along the axis that a layout cuts, if it is one."""
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
    """Returns the cut of which a slice in a layout, along an axis of a length, is the result."""
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
    step: Step, taken: Taken | None, cut: SliceBounds, begin: Tensor, end: Tensor
) -> tuple[list[Output], dict[str, int]]:
    """Returns `begin` and `end` for what the replica holds, and the masks that differ."""
    begins, ends = step.whole(begin), step.whole(end)
    if taken is None:
        return [begins, ends], {}
    bit, at = 1 << taken.position, taken.position
    masks = {name: step.op.attr(name) for name in ("begin_mask", "end_mask")}
    if cut.is_all:
        return [begins, ends], {name: mask | bit for name, mask in masks.items()}
    if cut.offset is not None:
        begins = step.shape_with(begin, at, step.write.constant(cut.offset))
        return [begins, ends], {
            "begin_mask": masks["begin_mask"] & ~bit,
            "end_mask": masks["end_mask"] | bit,
        }
    last = cut.first + cut.result.outer
    begins = step.shape_with(begin, at, entries_of(step, cut.source, cut.first))
    ends = step.shape_with(end, at, entries_of(step, cut.source, last))
    return [begins, ends], {name: mask & ~bit for name, mask in masks.items()}


def _extent(length: SizeLike, taken: Taken | None) -> SizeLike | None:
    """Returns the number of entries that are taken of an axis, where that is known."""
    if taken is None:
        return length
    begin, end = taken.bounds(length)
    if begin is None or end is None or taken.stride != 1 or not is_natural(end - begin):
        return None
    extent: SizeLike = end - begin
    return extent


# ---- Slice


@rule("Slice", partial=True)
def slice_(step: Step) -> Results:
    """Keeps the cut of all entries or whole blocks of the axis; keeps summands. Sends nothing."""
    tensor, begin, size = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout, begins, sizes = tensor.sharded, begin.sizes(), size.sizes()
    if layout is None or tensor.rank is None or begins is None or sizes is None:
        return None
    if length_of(begin) != tensor.rank or length_of(size) != tensor.rank:
        return None
    axis = layout.axis
    extents = [
        tensor.dim(at) - start if count == -1 else count
        for at, (start, count) in enumerate(zip(begins, sizes, strict=True))
    ]
    first, outer = (blocks_in(each[axis], layout) for each in (begins, extents))
    if first is None or outer is None or outer == 0 or not is_natural(layout.outer - first - outer):
        return None
    local_begin, local_size = step.whole(begin), step.whole(size)
    if outer != layout.outer:
        local_begin = step.shape_with(begin, axis, entries_of(step, layout, first))
    if sizes[axis] != -1:
        local_size = step.shape_with(size, axis, entries_of(step, layout, outer))
    outputs = step.emit([tensor.local, local_begin, local_size])
    shape = [each if is_size(each) else None for each in extents]
    return step.results(outputs, dataclasses.replace(layout, outer=outer), [shape])


# ---- what the rules of this family share


def has_partials(step: Step) -> bool:
    """Returns whether an input is a summand."""
    return any(tensor.layout == PARTIAL for tensor in step.inputs)


def linear_in(step: Step, index: int) -> Results:
    """Writes an operation that is linear in one input, where that is a summand: so is the result.

    None: it is no summand, or the other inputs are not whole.
    """
    others = [tensor for at, tensor in enumerate(step.inputs) if at != index]
    if step.inputs[index].layout != PARTIAL or any(each.layout != REPLICATED for each in others):
        return None
    shapes = known_values.shapes(step.op, step.inputs)
    return step.results(step.emit(step.inputs), PARTIAL, shapes)


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


def is_natural(size: Any) -> bool:
    """Returns whether a size is certainly no negative number, where each symbol is 0 or more."""
    if isinstance(size, Size):
        return all(factor >= 0 for factor in size.terms.values())
    return is_size(size) and size >= 0


def constant_axes(tensor: Tensor, rank: int) -> list[int] | None:
    """Returns the axes that a constant names, counted from 0; None where it is no constant."""
    value = tensor.constant()
    return None if value is None else [int(axis) % rank for axis in np.reshape(value, -1)]


def _bound(value: Any, length: SizeLike) -> Any:
    """Returns a bound of a slice, as a number from 0 to the length; None where it is not known."""
    if not is_size(value):
        return None
    if value != 0 and is_natural(-value):
        if not (is_positive(-value) or _is_none_with(length, -value)):
            return None  # `x[-n:]` is all of `x` where `n` is 0
        value = value + length
    if is_natural(value - length):
        return length
    if is_natural(-value):
        return 0
    return value if is_natural(value) and is_natural(length - value) else None


def _is_none_with(length: SizeLike, size: Size) -> bool:
    """Returns whether a length is certainly 0 where a size is, as 3 * B where B is."""
    terms = length.terms if isinstance(length, Size) else {(): length}
    return any(all(set(own) <= set(term) for term in terms) for own in size.terms)


def length_of(vector: Tensor) -> int | None:
    """Returns the number of a vector's entries, where tracing knows it."""
    size = vector.shape[0] if vector.shape is not None and len(vector.shape) == 1 else None
    return size if isinstance(size, int) else None
