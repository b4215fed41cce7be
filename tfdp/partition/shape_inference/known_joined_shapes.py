"""The sizes of what is joined, taken apart, padded, or gathered from other tensors."""

from collections.abc import Sequence
from typing import Any

from tfdp.partition.shape_inference.known_shapes import (
    Found,
    axes_of,
    broadcast_shape,
    known_length,
    known_lengths,
    known_scalar,
    shapes_of,
)
from tfdp.partition.sizes import UNKNOWN, SizeLike, divided, is_size, product
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor


@shapes_of("Tile")
def _tile(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    times = known_lengths(inputs[1])
    if times is None or inputs[0].rank is None:
        return None
    return [[product(pair) for pair in zip(inputs[0].dims(), times, strict=True)]]


@shapes_of("Pack")
def _pack(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    known = next((tensor for tensor in inputs if tensor.rank is not None), None)
    if known is None:
        return None
    sizes: list[SizeLike | None] = list(known.dims())
    sizes.insert(op.attr("axis") % (len(sizes) + 1), len(inputs))
    return [sizes]


@shapes_of("Unpack")
def _unpack(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    if inputs[0].rank is None:
        return None
    sizes = inputs[0].dims()
    del sizes[op.attr("axis") % len(sizes)]
    return [sizes for _ in op.outputs]


@shapes_of("ConcatV2")
def _concat(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensors = inputs[:-1]
    axes = axes_of(inputs[-1], tensors[0].rank)
    if axes is None or any(tensor.rank is None for tensor in tensors):
        return None
    sizes: list[SizeLike | None] = list(tensors[0].dims())
    sizes[axes[0]] = sum(tensor.dim(axes[0]) for tensor in tensors)
    return [sizes]


@shapes_of("Split", "SplitV")
def _split(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensor, axis = inputs[op.type == "Split"], inputs[0 if op.type == "Split" else -1]
    axes, count = axes_of(axis, tensor.rank), len(op.outputs)
    if axes is None:
        return None
    (at,), sizes = axes, tensor.dims()
    if op.type == "Split":
        parts = [divided(sizes[at], count)] * count
    else:
        parts = parts_of(inputs[1], sizes[at], count)
    return [[*sizes[:at], part if is_size(part) else None, *sizes[at + 1 :]] for part in parts]


def parts_of(sizes: Tensor, total: SizeLike, count: int) -> list[Any]:
    """Returns the sizes of parts of a total; at most one is given as -1: what is left."""
    given: list[Any] = sizes.sizes() or [UNKNOWN] * count
    rest: Any = total
    for each in given:
        rest = rest - (0 if each == -1 else each)
    return [rest if each == -1 else each for each in given]


@shapes_of("MirrorPad", "MirrorPadGrad", "Pad", "PadV2")
def _padded(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensor, paddings = inputs[:2]
    if tensor.rank is None or paddings.entries is None:
        return None
    sign = -1 if op.type == "MirrorPadGrad" else 1
    pairs = zip(tensor.dims(), paddings.entries, strict=True)
    return [[known_length(size + (before + after) * sign) for size, (before, after) in pairs]]


@shapes_of("GatherV2")
def _gather(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    array, indices, axis = inputs
    axes = axes_of(axis, array.rank)
    if axes is None or array.rank is None or indices.rank is None:
        return None
    batch_dims = op.attr("batch_dims")
    rows = indices.dims()[batch_dims + (indices.rank if batch_dims < 0 else 0) :]
    return [[*array.dims()[: axes[0]], *rows, *array.dims()[axes[0] + 1 :]]]


@shapes_of("GatherNd")
def _gather_nd(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    array, indices = inputs
    depth: Any = indices.shape[-1] if indices.shape else None
    if array.rank is None or not isinstance(depth, int):
        return None
    return [[*indices.dims()[:-1], *array.dims()[depth:]]]


@shapes_of("ResourceGather", "ResourceGatherNd")
def _gather_of_variable(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    indices, rank = inputs[1], op.outputs[0].shape.rank
    if indices.rank is None or rank is None:
        return None
    sizes = indices.dims()[: indices.rank - (op.type == "ResourceGatherNd")]
    return [[*sizes, *[None] * (rank - len(sizes))]]


@shapes_of("OneHot")
def _one_hot(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    indices, depth = inputs[:2]
    if indices.rank is None:
        return None
    sizes: list[SizeLike | None] = list(indices.dims())
    sizes.insert(op.attr("axis") % (indices.rank + 1), known_scalar(depth))
    return [sizes]


@shapes_of(
    *(f"UnsortedSegment{kind}" for kind in ("Max", "Min", "Prod", "Sum")),
    *(f"Segment{kind}" for kind in ("Max", "Mean", "Min", "Prod", "Sum")),
    *(f"Segment{kind}V2" for kind in ("Max", "Min", "Prod", "Sum")),
)
def _segments(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    data, segments, *count = inputs
    if data.rank is None or segments.rank is None:
        return None
    size = known_scalar(count[0]) if count else None
    return [[size, *data.dims()[segments.rank :]]]


@shapes_of("NthElement", "TopKV2")
def _largest(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    if inputs[0].rank is None:
        return None
    sizes = inputs[0].dims()[:-1]
    return [sizes] if op.type == "NthElement" else [[*sizes, known_scalar(inputs[1])]] * 2


@shapes_of("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def _losses(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    logits, labels = inputs
    if logits.rank != 2 or labels.rank is None:
        return None
    sizes = broadcast_shape(inputs, 2) if labels.rank == 2 else logits.dims()
    return [[sizes[0]], sizes]


@shapes_of(*(f"MatrixDiag{each}" for each in ("", "V2", "V3", "Part", "PartV2", "PartV3")))
def _diagonals(op: SourceOp, inputs: Sequence[Tensor]) -> Found:
    tensor, *others = inputs
    if tensor.rank is None:
        return None
    if op.type.startswith("MatrixDiagPart") or not _is_main_diagonal(others):
        rank, ahead = op.outputs[0].shape.rank, tensor.rank - axes_of_diagonals(op, inputs)
        return None if rank is None else [[*tensor.dims()[:ahead], *[None] * (rank - ahead)]]
    return [[*tensor.dims(), tensor.dim(tensor.rank - 1)]]


def _is_main_diagonal(options: Sequence[Tensor]) -> bool:
    """Returns whether a tensor becomes square matrices in which all else is padding."""
    values = [each.constant() for each in options[:3]]
    return all(
        value is not None and value.size == 1 and value.item() == standard
        for value, standard in zip(values, (0, -1, -1), strict=False)
    )


def axes_of_diagonals(op: SourceOp, inputs: Sequence[Tensor]) -> int:
    """Returns how many of its tensor's last axes an operation takes for matrices or vectors."""
    if op.type == "MatrixDiag":
        return 1
    numbers = inputs[1].constant() if op.type in ("MatrixDiagV2", "MatrixDiagV3") else None
    return 1 if numbers is not None and len(set(numbers.ravel().tolist())) == 1 else 2
