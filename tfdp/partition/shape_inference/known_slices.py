"""The axes of a tensor that slices select, and the sizes of the results."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfdp.partition.shape_inference.known_shapes import Found, known_length, shapes_of
from tfdp.partition.sizes import UNKNOWN, Size, SizeLike, is_positive, is_size
from tfdp.partition.source import SourceOp
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


@shapes_of("StridedSlice")
def _strided_slice(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensor, *spec = inputs
    found = None if tensor.rank is None else taken_by(op, tensor.rank, *spec)
    if found is None:
        return None
    taken, axes = found
    return [[1 if axis is None else _extent(tensor.dim(axis), taken.get(axis)) for axis in axes]]


@shapes_of("Slice")
def _slice(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    found = extents_of(*inputs)
    return None if found is None else [[known_length(size) for size in found]]


def extents_of(tensor: Tensor, begin: Tensor, size: Tensor) -> list[Any] | None:
    """Returns how many entries a slice takes of each axis, as far as that is known."""
    begins, sizes = begin.sizes(), size.sizes()
    if tensor.rank is None or begins is None or sizes is None:
        return None
    triples = zip(tensor.dims(), begins, sizes, strict=True)
    return [length - first if count == -1 else count for length, first, count in triples]


def taken_by(
    op: SourceOp, rank: int, begin: Tensor, end: Tensor, strides: Tensor
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
        return bool(op.attr(f"{name}_mask") >> position & 1)

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


def _extent(length: SizeLike, taken: Taken | None) -> SizeLike | None:
    """Returns the number of entries that are taken of an axis, where that is known."""
    if taken is None:
        return length
    begin, end = taken.bounds(length)
    if begin is None or end is None or taken.stride != 1 or not is_natural(end - begin):
        return None
    extent: SizeLike = end - begin
    return extent


def is_natural(size: Any) -> bool:
    """Returns whether a size is certainly no negative number, where each symbol is 0 or more."""
    if isinstance(size, Size):
        return all(factor >= 0 for factor in size.terms.values())
    return is_size(size) and size >= 0


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
