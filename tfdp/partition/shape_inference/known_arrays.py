"""The entries of small tensors that are put together, taken apart and put in another order."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.partition.shape_inference.known_numbers import Compute, broadcast_size, each
from tfdp.partition.sizes import UNKNOWN, is_size
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import MOST_ENTRIES, array_of

Arrays = Sequence[np.ndarray]
Found = Sequence["np.ndarray | None"] | None

ARRAYS: dict[str, Compute] = {}


def _of(*types: str) -> Callable[[Compute], Compute]:
    def register(compute: Compute) -> Compute:
        ARRAYS.update(dict.fromkeys(types, compute))
        return compute

    return register


def numbers(array: np.ndarray) -> list[int] | None:
    """Returns the entries where all are whole numbers, else None."""
    flat = list(array.flat)
    return flat if all(is_size(entry) and isinstance(entry, int) for entry in flat) else None


def number(array: np.ndarray) -> int | None:
    """Returns the only entry if it is a whole number, else None."""
    found = numbers(array)
    return found[0] if found is not None and len(found) == 1 else None


def filled(shape: Sequence[int], value: Any) -> np.ndarray | None:
    """Returns an array of one value; None where it has too many entries to be followed."""
    if math.prod(shape) > MOST_ENTRIES:
        return None
    found = np.empty(shape, object)
    found.fill(value)
    return found


@_of("Const")
def _constant(op: SourceOp, arrays: Arrays) -> Found:
    proto = op.node.attr["value"].tensor
    if math.prod(dim.size for dim in proto.tensor_shape.dim) > MOST_ENTRIES:
        return None
    return [array_of(tf.make_ndarray(proto))]


@_of("Pack")
def _pack(op: SourceOp, arrays: Arrays) -> Found:
    return [np.stack(arrays, op.attr("axis"))]


@_of("Unpack")
def _unpack(op: SourceOp, arrays: Arrays) -> Found:
    rows = np.moveaxis(arrays[0], op.attr("axis"), 0)
    return [rows[(index, ...)] for index in range(len(rows))]


@_of("ConcatV2")
def _concat(op: SourceOp, arrays: Arrays) -> Found:
    axis = number(arrays[-1])
    return None if axis is None else [np.concatenate(arrays[:-1], axis)]


@_of("Split")
def _split(op: SourceOp, arrays: Arrays) -> Found:
    axis = number(arrays[0])
    return None if axis is None else np.split(arrays[1], len(op.outputs), axis)


@_of("SplitV")
def _split_by_sizes(op: SourceOp, arrays: Arrays) -> Found:
    array, lengths, axis = arrays[0], numbers(arrays[1]), number(arrays[2])
    if lengths is None or axis is None:
        return None
    if -1 in lengths:
        lengths[lengths.index(-1)] = array.shape[axis] - sum(lengths) - 1
    if min(lengths, default=0) < 0 or sum(lengths) != array.shape[axis]:
        return None
    return np.split(array, np.cumsum(lengths)[:-1], axis)


@_of("StridedSlice")
def _strided_slice(op: SourceOp, arrays: Arrays) -> Found:
    array, *ends = arrays
    spec: list[Any] = []
    for at, (begin, end, stride) in enumerate(zip(*ends, strict=True)):
        is_set = {
            name: op.attr(f"{name}_mask") >> at & 1
            for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        }
        if is_set["ellipsis"] or is_set["new_axis"]:
            spec.append(... if is_set["ellipsis"] else None)
            continue
        begin = None if is_set["begin"] and not is_set["shrink_axis"] else begin
        end = None if is_set["end"] or is_set["shrink_axis"] else end
        if not all(each is None or isinstance(each, int) for each in (begin, end, stride)):
            return None
        spec.append(begin if is_set["shrink_axis"] else slice(begin, end, stride))
    return [array[tuple(spec) if ... in spec else (*spec, ...)]]


@_of("Slice")
def _slice(op: SourceOp, arrays: Arrays) -> Found:
    array, begins, lengths = arrays[0], numbers(arrays[1]), numbers(arrays[2])
    if begins is None or lengths is None:
        return None
    spec: list[Any] = [
        slice(begin, size if length == -1 else begin + length)
        for size, begin, length in zip(array.shape, begins, lengths, strict=True)
    ]
    return [array[(*spec, ...)]]


@_of("GatherV2")
def _gather(op: SourceOp, arrays: Arrays) -> Found:
    array, indices, axis = arrays[0], numbers(arrays[1]), number(arrays[2])
    if indices is None or axis is None or op.attr("batch_dims") or min(indices, default=0) < 0:
        return None
    at = np.array(indices, np.int64).reshape(arrays[1].shape)
    return [array_like(np.take(array, at, axis))]


def array_like(value: Any) -> np.ndarray:
    """Returns an array of what NumPy returns, which for a scalar is the entry alone."""
    if isinstance(value, np.ndarray):
        return value
    found = np.empty((), object)
    found[()] = value
    return found


@_of("Reshape")
def _reshape(op: SourceOp, arrays: Arrays) -> Found:
    to = numbers(arrays[1])
    return None if to is None else [arrays[0].reshape(to)]


@_of("ExpandDims")
def _expand_dims(op: SourceOp, arrays: Arrays) -> Found:
    axis = number(arrays[1])
    return None if axis is None else [np.expand_dims(arrays[0], axis)]


@_of("Squeeze")
def _squeeze(op: SourceOp, arrays: Arrays) -> Found:
    axes = tuple(op.attr("squeeze_dims") or ())
    return [np.squeeze(arrays[0], axes or None)]


@_of("Transpose")
def _transpose(op: SourceOp, arrays: Arrays) -> Found:
    order = numbers(arrays[1])
    return None if order is None else [arrays[0].transpose(order)]


@_of("ReverseV2")
def _reverse(op: SourceOp, arrays: Arrays) -> Found:
    axes = numbers(arrays[1])
    return None if axes is None else [np.flip(arrays[0], tuple(axes))]


@_of("Cumsum")
def _cumulative_sum(op: SourceOp, arrays: Arrays) -> Found:
    axis = number(arrays[1])
    if axis is None:
        return None
    rows = np.moveaxis(arrays[0], axis, 0)
    rows = rows[::-1] if op.attr("reverse") else rows
    found = np.empty(rows.shape, object)
    total: Any = filled(rows.shape[1:], 0)
    for index in range(len(rows)):
        before, total = total, array_like(total + rows[(index, ...)])
        found[(index, ...)] = before if op.attr("exclusive") else total
    return [np.moveaxis(found[::-1] if op.attr("reverse") else found, 0, axis)]


@_of("Tile")
def _tile(op: SourceOp, arrays: Arrays) -> Found:
    times = numbers(arrays[1])
    if times is None or arrays[0].size * math.prod(times) > MOST_ENTRIES:
        return None
    return [np.tile(arrays[0], times)]


@_of("Fill")
def _fill(op: SourceOp, arrays: Arrays) -> Found:
    shape = numbers(arrays[0])
    return None if shape is None else [filled(shape, arrays[1][()])]


@_of("BroadcastTo")
def _broadcast_to(op: SourceOp, arrays: Arrays) -> Found:
    shape = numbers(arrays[1])
    if shape is None or math.prod(shape) > MOST_ENTRIES:
        return None
    return [np.broadcast_to(arrays[0], shape)]


@_of("Range")
def _range(op: SourceOp, arrays: Arrays) -> Found:
    ends = [number(array) for array in arrays]
    if None in ends:
        return None
    found = range(*ends)  # type: ignore[arg-type]
    return [array_of(list(found))] if len(found) <= MOST_ENTRIES else None


@_of("InvertPermutation")
def _invert_permutation(op: SourceOp, arrays: Arrays) -> Found:
    order = numbers(arrays[0])
    return None if order is None else [array_of(np.argsort(order))]


@_of("DynamicStitch")
def _dynamic_stitch(op: SourceOp, arrays: Arrays) -> Found:
    count = len(arrays) // 2
    places = [numbers(array) for array in arrays[:count]]
    length = 1 + max((at for each in places if each for at in each), default=-1)
    rest = arrays[count].shape[arrays[0].ndim :]
    found = filled([length, *rest], UNKNOWN)
    if None in places or found is None:
        return None
    for own, data in zip(places, arrays[count:], strict=True):
        for at, row in zip(own or (), data.reshape([-1, *rest]), strict=True):
            found[(at, ...)] = row
    return [found]


@_of("ListDiff")
def _list_diff(op: SourceOp, arrays: Arrays) -> Found:
    values, without = (numbers(array) for array in arrays)
    if values is None or without is None:
        return None
    left = [at for at, value in enumerate(values) if value not in without]
    return [array_of([values[at] for at in left]), array_of(left)]


@_of("ConcatOffset")
def _concat_offset(op: SourceOp, arrays: Arrays) -> Found:
    axis, (first, *_) = number(arrays[0]), arrays[1:]
    if axis is None:
        return None
    found: list[np.ndarray] = []
    total: Any = 0
    for shape in arrays[1:]:
        offset = filled(first.shape, 0)
        assert offset is not None
        offset[axis] = total
        found.append(offset)
        total = total + shape[axis]
    return found


@_of("BroadcastArgs")
def _broadcast_args(op: SourceOp, arrays: Arrays) -> Found:
    rank = max(map(len, arrays))
    return [each(broadcast_size, *(_padded(array, rank) for array in arrays))]


@_of("BroadcastGradientArgs")
def _broadcast_gradient_args(op: SourceOp, arrays: Arrays) -> Found:
    """Returns the axes that each of two gradients is summed over.

    A length that is only known when the step runs counts as different from 1. Where it is 1 after
    all, a gradient is summed over an axis of one entry, or not, which is the same to the reshape
    that follows.
    """
    a, b = (_padded(array, max(map(len, arrays))) for array in arrays)
    if len(arrays[0]) == len(arrays[1]) and all(map(_is_same, a, b)):
        return [array_of([]), array_of([])]
    for x, y in zip(a, b, strict=True):
        if not _is_one(x) and not _is_one(y) and not _is_same(x, y):
            return None  # one of them may be 1
    return [
        array_of([axis for axis, size in enumerate(sizes) if _is_one(size)]) for sizes in (a, b)
    ]


def _padded(sizes: np.ndarray, rank: int) -> np.ndarray:
    return array_of([1] * (rank - len(sizes)) + list(sizes))


def _is_same(a: Any, b: Any) -> bool:
    return is_size(a) and is_size(b) and a == b


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
