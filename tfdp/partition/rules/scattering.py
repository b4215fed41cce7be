"""Entries of tensors, written or added up by their indices; sums and extremes of segments.

What each replica adds up of its examples is a partial, if the result has no axis of the batch. Sums
whose result is as long as a batch are computed on the gathered batch: the partials would be longer
than what they are made of.
"""

from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.indexing import depth_of
from tfdp.partition.rules.operand_layouts import can_be_summed, has_partials, linear_in
from tfdp.partition.rules.reductions import meeting
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.self_indexing import own_places
from tfdp.partition.rules.sparse import own_segments
from tfdp.partition.shape_inference.known_shapes import known_scalar
from tfdp.partition.sizes import Batch, Size
from tfdp.partition.tensors import Tensor


@rule("ScatterNd", partial=True)
def scatter(step: Step) -> Results:
    """Adds up a replica's updates: a partial. Updates sharded along other axes keep the shard.

    So do those of a result as long as the batch where each example names itself. Sends nothing,
    unless indices or updates are sharded otherwise than the other.
    """
    indices, updates, to = step.inputs
    if has_partials(step):
        return linear_in(step, 1)
    sizes, depth, last = to.sizes(), depth_of(indices), _last(indices)
    if depth is None or last is None or sizes is None or updates.rank is None:
        return None
    layout, own = _spot(indices, updates), updates.sharded
    if own is not None and own.axis >= last:  # along an axis that no index names
        result = own.at(own.axis - last + depth)
        if sizes[result.axis] != own.length:
            return None
        local = step.shape_with(to, result.axis, step.entries(result))
        return step.results(step.emit([step.replicated(indices), updates.local, local]), result)
    if layout is not None and sizes[0] == layout.length and fits(updates, layout):
        places = own_places(step, 0, layout)
        if places is not None:
            local = step.shape_with(to, 0, step.entries(layout))
            outputs = step.emit([places, part(step, updates, layout), local])
            return step.results(outputs, layout)
    if layout is None or layout.axis >= last or not all(map(_is_no_batch, sizes)):
        return None
    added = _added(step, indices, updates, layout)
    if added is None:
        return None
    return step.results(step.emit([*added, step.replicated(to)]), PARTIAL)


@rule("TensorScatterAdd", "TensorScatterSub", partial=True)
def scatter_add(step: Step) -> Results:
    """Adds a replica's updates to a tensor, which is added once: a partial.

    A tensor that is sharded along an axis that no index names keeps the shard. Sends nothing,
    unless indices or updates are sharded otherwise than the other.
    """
    tensor, indices, updates = step.inputs
    if PARTIAL in (indices.layout, updates.layout):
        return _scattered_partials(step)
    last = _last(indices)
    if tensor.rank is None or updates.rank is None or last is None:
        return None
    layout = _spot(indices, updates)
    if tensor.layout == PARTIAL and layout is None:
        return _scattered_partials(step)
    if tensor.sharded is not None or layout is None or layout.axis >= last:
        return _scattered_into_own(step) or _scattered_beside(step)
    if tensor.layout not in (REPLICATED, PARTIAL) or not all(map(_is_no_batch, tensor.dims())):
        return None
    added = _added(step, indices, updates, layout)
    if added is None:
        return None
    outputs = step.emit([_as_partial(step, tensor), *added])
    return step.results(outputs, PARTIAL)


@rule("TensorScatterUpdate", "TensorScatterMax", "TensorScatterMin")
def scatter_update(step: Step) -> Results:
    """Keeps the shard of an axis that no index names, or where each example names itself.

    Sends nothing.
    """
    return _scattered_into_own(step) or _scattered_beside(step)


@rule("UnsortedSegmentSum", partial=True)
def segment_sum(step: Step) -> Results:
    """Adds up a replica's examples: a partial. Data sharded along other axes keep the shard.

    Sends nothing, unless data and segments are sharded otherwise.
    """
    data, segments, _ = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    layout = _spot(segments, data)
    if layout is None or segments.rank is None or data.rank is None:
        return None
    if layout.axis >= segments.rank:
        return _segments_beside(step)
    if not can_be_summed(data.dtype):
        return None
    found = _own_segments(step, layout)
    return None if found is None else step.results([found], PARTIAL)


@rule("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def segment_extreme(step: Step) -> Results:
    """Gives the replicated result: each replica sends that of its examples.

    Data sharded along an axis that has no segments keep the shard, and nothing is sent.
    """
    data, segments, _ = step.inputs
    layout = _spot(segments, data)
    if layout is None or segments.rank is None or data.rank is None:
        return None
    if layout.axis >= segments.rank:
        return _segments_beside(step)
    found = _own_segments(step, layout)
    if found is None:
        return None
    kind = step.op.type.removeprefix("UnsortedSegment")
    return step.results([meeting(step, found, kind, step.shapes()[0] or ())], REPLICATED)


@rule("SegmentSum", "SegmentMean", "SegmentSumV2", partial=True)
def sorted_segment_sum(step: Step) -> Results:
    """Keeps the shard of data along an axis that has no segments; keeps partials.

    So do segments that are the rows of a batch, each with entries. Sends nothing.
    """
    if has_partials(step):
        return linear_in(step, 0)
    return own_segments(step) or _segments_beside(step)


@rule(
    "SegmentMax",
    "SegmentMaxV2",
    "SegmentMin",
    "SegmentMinV2",
    "SegmentProd",
    "SegmentProdV2",
)
def sorted_segment_extreme(step: Step) -> Results:
    """Keeps the shard of data along an axis that has no segments. Sends nothing."""
    return _segments_beside(step)


def _own_segments(step: Step, layout: Sharded) -> Output | None:
    """Returns what a replica's examples give for each segment."""
    data, segments, count = step.inputs
    if not (_is_no_batch(known_scalar(count)) and fits(data, layout) and fits(segments, layout)):
        return None
    # What stands in for an example is in no segment: negative ones are left out.
    own = step.masked(part(step, segments, layout), layout, -1)
    (output,) = step.emit([part(step, data, layout), own, step.replicated(count)])
    return output


def _segments_beside(step: Step) -> Results:
    """Writes sums of segments of data that are sharded along another axis than the segments lie."""
    data, segments, *count = step.inputs
    layout = data.sharded
    if layout is None or segments.rank is None or layout.axis < segments.rank:
        return None
    outputs = step.emit([data.local, *map(step.replicated, (segments, *count))])
    return step.results(outputs, layout.at(layout.axis - segments.rank + 1))


def _scattered_into_own(step: Step) -> Results:
    """Writes updates into a tensor of which each example names its own entries."""
    tensor, _, updates = step.inputs
    layout = tensor.sharded
    if layout is None or not fits(updates, layout):
        return None
    places = own_places(step, 1, layout)
    if places is None:
        return None
    outputs = step.emit([tensor.local, places, part(step, updates, layout)])
    return step.results(outputs, layout)


def _scattered_beside(step: Step) -> Results:
    """Writes updates into a tensor that is sharded along an axis that no index names."""
    tensor, indices, updates = step.inputs
    depth, last = depth_of(indices), _last(indices)
    if depth is None or last is None or tensor.rank is None or updates.rank is None:
        return None
    layout = tensor.sharded
    if layout is None and updates.sharded is not None:
        layout = updates.sharded.at(updates.sharded.axis - last + depth)
    if layout is None or layout.axis < depth:
        return None
    beside = layout.at(layout.axis - depth + last)
    if not (fits(tensor, layout) and fits(updates, beside)):
        return None
    operands = [part(step, tensor, layout), step.replicated(indices), part(step, updates, beside)]
    return step.results(step.emit(operands), layout)


def _scattered_partials(step: Step) -> Results:
    """Writes or adds partials into one another, a replicated operand on the first replica."""
    tensor, indices, updates = step.inputs
    if indices.layout != REPLICATED:
        return None
    if any(each.layout not in (PARTIAL, REPLICATED) for each in (tensor, updates)):
        return None
    operands = [_as_partial(step, tensor), indices.local, _as_partial(step, updates)]
    return step.results(step.emit(operands), PARTIAL)


def _as_partial(step: Step, tensor: Tensor) -> Output:
    return tensor.local if tensor.layout == PARTIAL else step.first_only(tensor.local)


def _added(step: Step, indices: Tensor, updates: Tensor, layout: Sharded) -> list[Any] | None:
    """Returns a replica's part of indices and updates; what stands in for examples adds zeros."""
    if not can_be_summed(updates.dtype) or not (fits(indices, layout) and fits(updates, layout)):
        return None
    own = step.masked(part(step, updates, layout), layout)
    return [part(step, indices, layout), own]


def _spot(indices: Tensor, values: Tensor) -> Sharded | None:
    """Returns the shard of the values, which are larger, or else that of the indices."""
    return values.sharded or indices.sharded


def _is_no_batch(size: Any) -> bool:
    """Returns whether a size of a result is not as long as a batch."""
    if not isinstance(size, Size):
        return True
    return not any(isinstance(symbol, Batch) for symbol in size.symbols())


def _last(indices: Tensor) -> int | None:
    """Returns the last axis of indices, which is the number of axes that the updates share."""
    return None if not indices.rank else indices.rank - 1
