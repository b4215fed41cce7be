"""Sums that every replica computes for itself, in an order that is the same on all of them.

A GPU's kernels add what goes to one place as it comes. Where every replica computes a sum of its
own that is to be the same on all, such as a table that each updates by all rows, the replicas'
copies would part in the last bits, and never meet again. So entries are sorted by their places and
each run is summed by itself, by `SparseSegmentSum`, which adds them in their order. What a place
gets is written for each of its entries: the same bits, whichever is the last. A bias' gradient is
the sum of all but one axis, which `Sum` adds up in one order.

Nothing is asked of a GPU meanwhile, as `Unique` would that has as many entries as it finds. Sums of
integers have no order. Sums of complex numbers have no such kernel, and products are no sums: both
stay as they are.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.rules.registry import Step
from tfdp.partition.source import SourceTensor

# What gives no number twice, and what leaves numbers as they are.
_ONCE = {"Range", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}
_PASSING = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"}


def emit(step: Step, inputs: Sequence[Output]) -> list[Output]:
    """Writes an operation that every replica computes of the same inputs."""
    if not step.program.adds_in_any_order:
        return step.emit(inputs)
    if step.op.type == "BiasAddGrad" and step.inputs[0].rank and inputs[0].dtype.is_floating:
        return [_of_bias(step, inputs[0], step.inputs[0].rank)]
    found = _FORMS.get(step.op.type)
    if found is None:
        return step.emit(inputs)
    write, values, indices = found
    can_part = inputs[values].dtype.is_floating and step.inputs[values].rank != 0
    if not (can_part and _is_known(step, indices) and may_repeat(step, indices)):
        return step.emit(inputs)
    return write(step, *inputs)


def _is_known(step: Step, index: int) -> bool:
    """Returns whether it is known how many axes indices have, and how many they name."""
    tensor = step.inputs[index]
    if not tensor.rank or ("Nd" not in step.op.type and "Tensor" not in step.op.type):
        return tensor.rank is not None
    return isinstance(tensor.dim(-1), int)


def may_repeat(step: Step, index: int) -> bool:
    """Returns whether a number may come twice in an input of an operation."""
    entries = step.inputs[index].constant()
    if entries is not None and entries.ndim == 1:
        return len(set(entries.tolist())) < entries.size
    tensor: SourceTensor = step.op.inputs[index]
    while tensor.op.type in _PASSING:
        tensor = tensor.op.inputs[0]
    return tensor.op.type not in _ONCE or tensor.index != 0


def _of_bias(step: Step, gradient: Output, rank: int) -> Output:
    """Sums a gradient over all axes but the bias', as its kernel does: 16 bits in float32."""
    write, dtype = step.write, gradient.dtype
    own = 1 if step.op.attr("data_format") == b"NCHW" else rank - 1
    wide = tf.float32 if dtype.size < 4 else dtype
    found = write.sum(write.cast(gradient, wide), [axis for axis in range(rank) if axis != own])
    return write.cast(found, dtype)


def _written_rows(step: Step, handle: Output, indices: Output, updates: Output) -> list[Output]:
    """Adds rows to a variable, or subtracts them."""
    write, dtype = step.write, updates.dtype
    rank = step.inputs[1].rank
    assert rank is not None
    keys = write.reshape(write.cast(indices, tf.int64), [-1])
    sums = _sums_of_equal(step, keys, _rows(step, updates, rank))
    old = step.writer.node(
        "ResourceGather",
        [handle, keys],
        dtype=dtype,
        Tindices=tf.int64,
        batch_dims=0,
        validate_indices=True,
    )[0]
    new = _plus(step, old, sums)
    return step.writer.node(
        "ResourceScatterUpdate", [handle, keys, new], dtype=dtype, Tindices=tf.int64
    )


def _written_entries(step: Step, handle: Output, indices: Output, updates: Output) -> list[Output]:
    """Adds slices to a variable by places of several axes, or subtracts them."""
    dtypes = {"Tindices": indices.dtype}
    shape = step.writer.node("VariableShape", [handle], out_type=tf.int32)[0]
    sums = _sums_of_equal_places(step, indices, updates, shape, 1)
    old = step.writer.node("ResourceGatherNd", [handle, indices], dtype=updates.dtype, **dtypes)[0]
    inputs = [handle, indices, _plus(step, old, sums)]
    attrs = {"T": updates.dtype, "use_locking": True, "bad_indices_policy": "", **dtypes}
    return step.writer.node("ResourceScatterNdUpdate", inputs, **attrs)


def _scattered(step: Step, indices: Output, updates: Output, shape: Output) -> list[Output]:
    sums = _sums_of_equal_places(step, indices, updates, shape, 0)
    zero = step.write.constant(0, updates.dtype)
    attrs = {"T": updates.dtype, "index_type": shape.dtype}
    zeros = step.writer.node("Fill", [shape, zero], **attrs)[0]
    return _updated(step, zeros, indices, sums)


def _added(step: Step, tensor: Output, indices: Output, updates: Output) -> list[Output]:
    sums = _sums_of_equal_places(step, indices, updates, step.write.shape(tensor), 1)
    attrs = {"Tparams": tensor.dtype, "Tindices": indices.dtype, "bad_indices_policy": ""}
    old = step.writer.node("GatherNd", [tensor, indices], **attrs)[0]
    return _updated(step, tensor, indices, _plus(step, old, sums))


def _segments(step: Step, data: Output, segments: Output, count: Output) -> list[Output]:
    """Sums segments in any order; what is in none of them makes one more, which is left out."""
    write, rank = step.write, step.inputs[1].rank
    assert rank is not None
    keys = write.reshape(write.cast(segments, tf.int64), [-1])
    end = write.cast(count, tf.int64)
    keys = write.minimum(write.select(write.greater(0, keys), end, keys), end)
    ordered, order = _sorted(step, keys)
    number = write.cast(count, tf.int32)
    sums = _sum(step, _rows(step, data, rank), order, ordered, write.add(number, 1))
    shape = write.shape(sums)
    size = write.concat([write.pack([number], tf.int32), write.slice(shape, [1], [-1])], 0)
    begin = write.zeros_like(shape)
    return step.writer.node("Slice", [sums, begin, size], T=data.dtype, Index=tf.int32)


def _sorted_segments(step: Step, data: Output, segments: Output) -> list[Output]:
    """Sums segments that follow one another, or takes their means."""
    write = step.write
    bounds = [write.constant(0), write.element(write.shape(segments), 0), write.constant(1)]
    (order,) = step.writer.node("Range", bounds, Tidx=tf.int32)
    attrs = {"T": data.dtype, "Tidx": tf.int32, "Tsegmentids": segments.dtype}
    return step.writer.node(
        f"Sparse{step.op.type}", [data, order, segments], sparse_gradient=False, **attrs
    )


def _sums_of_equal_places(
    step: Step, indices: Output, updates: Output, shape: Output, at: int
) -> Output:
    """Returns for each slice the sum of all with its place.

    Args:
      step: The operation.
      indices: The places, each along the last axis.
      updates: The slices.
      shape: Of what they are added to.
      at: Which of the operation's inputs the places are.
    """
    write, tensor = step.write, step.inputs[at]
    depth, rank = tensor.dim(-1), tensor.rank
    assert isinstance(depth, int) and rank is not None
    places = write.reshape(write.cast(indices, tf.int64), [-1, depth])
    with step.writer.on_host():
        strides: list[Output] = [write.constant(1, tf.int64)]
        for axis in reversed(range(1, depth)):
            size = write.cast(write.element(shape, axis), tf.int64)
            strides.insert(0, write.multiply(strides[0], size))
    keys = write.sum(write.multiply(places, write.pack(strides, tf.int64)), [1])
    sums = _sums_of_equal(step, keys, _rows(step, updates, rank - 1))
    return write.reshape(sums, write.shape(updates))


def _sums_of_equal(step: Step, keys: Output, rows: Output) -> Output:
    """Returns for each row the sum of all with its key: the same bits for all of one key."""
    write = step.write
    ordered, order = _sorted(step, keys)
    count = write.maximum(write.element(write.shape(keys), 0), 1)
    sums = _sum(step, rows, order, _firsts(step, ordered, ordered), count)
    return write.gather(sums, _firsts(step, ordered, keys))


def _sorted(step: Step, keys: Output) -> tuple[Output, Output]:
    """Returns the keys from the least to the largest, and where each of them was."""
    write = step.write
    count = write.element(write.shape(keys), 0)
    negated = step.writer.node("Neg", [keys], T=keys.dtype)[0]
    attrs = {"T": keys.dtype, "sorted": True, "Tk": tf.int32, "index_type": tf.int32}
    values, order = step.writer.node("TopKV2", [negated, count], **attrs)
    return step.writer.node("Neg", [values], T=keys.dtype)[0], order


def _firsts(step: Step, ordered: Output, keys: Output) -> Output:
    """Returns for each key the first place that it has among those in order."""
    write = step.write
    rows = [write.expand(each, 0) for each in (ordered, keys)]
    found = step.writer.node("LowerBound", rows, T=keys.dtype, out_type=tf.int64)[0]
    return write.reshape(found, [-1])


def _sum(step: Step, rows: Output, order: Output, segments: Output, count: Output) -> Output:
    attrs = {"T": rows.dtype, "Tidx": tf.int32, "Tsegmentids": tf.int64, "Tnumsegments": tf.int32}
    inputs = [rows, order, segments, count]
    return step.writer.node(
        "SparseSegmentSumWithNumSegments", inputs, sparse_gradient=False, **attrs
    )[0]


def _rows(step: Step, values: Output, axes: int) -> Output:
    """Returns values with their first axes merged to one."""
    write = step.write
    if axes == 1:
        return values
    shape = write.shape(values)
    number = write.reduce("Prod", write.slice(shape, [0], [axes]), [0])
    rest = write.slice(shape, [axes], [-1])
    return write.reshape(values, write.concat([write.pack([number], tf.int32), rest], 0))


def _plus(step: Step, old: Output, sums: Output) -> Output:
    write = step.write
    return write.subtract(old, sums) if step.op.type.endswith("Sub") else write.add(old, sums)


def _updated(step: Step, tensor: Output, indices: Output, values: Output) -> list[Output]:
    attrs = {"T": tensor.dtype, "Tindices": indices.dtype, "bad_indices_policy": ""}
    return step.writer.node("TensorScatterUpdate", [tensor, indices, values], **attrs)


# For each type what writes it, and which of its inputs are the values and the indices.
_FORMS: dict[str, tuple[Callable[..., list[Output]], int, int]] = {
    "ResourceScatterAdd": (_written_rows, 2, 1),
    "ResourceScatterSub": (_written_rows, 2, 1),
    "ResourceScatterNdAdd": (_written_entries, 2, 1),
    "ResourceScatterNdSub": (_written_entries, 2, 1),
    "ScatterNd": (_scattered, 1, 0),
    "SegmentMean": (_sorted_segments, 0, 1),
    "SegmentSum": (_sorted_segments, 0, 1),
    "TensorScatterAdd": (_added, 2, 1),
    "TensorScatterSub": (_added, 2, 1),
    "UnsortedSegmentSum": (_segments, 0, 1),
}
