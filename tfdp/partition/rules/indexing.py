"""Entries of tensors, taken by their indices."""

from typing import Any

from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Sharded
from tfdp.partition.row_ids import own_rows
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.elementwise import grows
from tfdp.partition.rules.operand_layouts import has_partials, linear_in, local_rows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.self_indexing import own_places
from tfdp.partition.shape_inference.known_shapes import axes_of
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor


@rule("GatherV2", partial=True)
def gather(step: Step) -> Results:
    """Takes of whole parameters what a replica's indices name, or replicated indices of a part.

    1. Where both have the batch's axis in common (`batch_dims`), both are sharded along it.
    2. Parameters that are sharded along another axis than the indices' keep the shard; indices that
       are sharded, too, are gathered.
    3. Otherwise the indices' shard is kept; parameters that are sharded are gathered, unless a
       replica's indices name its own rows.

    Replicated indices of a partial give a partial, unless that has more elements.
    """
    params, indices, axis = step.inputs
    if has_partials(step):
        return None if grows(step) else linear_in(step, 0)
    axes = None if params.rank is None else axes_of(axis, params.rank)
    if params.rank is None or indices.rank is None or axes is None:
        return None
    at, common = axes[0], step.op.attr("batch_dims")
    common += indices.rank if common < 0 else 0
    own, theirs = params.sharded, indices.sharded
    for layout in (own, theirs):
        if layout is not None and layout.axis < common:
            if not (fits(params, layout) and fits(indices, layout)):
                return None
            operands = [part(step, params, layout), part(step, indices, layout)]
            return step.results(step.emit([*operands, step.replicated(axis)]), layout)
    if own is not None and own.axis != at:
        place = own.axis + (indices.rank - common - 1 if own.axis > at else 0)
        outputs = step.emit([params.local, _whole(step, indices), step.replicated(axis)])
        return step.results(outputs, own.at(place))
    names = own_rows(indices)
    if names and theirs and own == Sharded(0, names.batch) and at == 0:
        outputs = step.emit([params.local, local_rows(step, indices, own), step.replicated(axis)])
        return step.results(outputs, theirs)
    if theirs is not None:
        rows, places = _whole(step, params), indices.local
        if not isinstance(params.dim(at), int):  # padding rows need one to name
            rows = step.never_empty(rows, params.rank, at, theirs)
            places = step.filled(places, theirs)
        outputs = step.emit([rows, places, step.replicated(axis)])
        return step.results(outputs, theirs.at(at + theirs.axis - common))
    return None


@rule("GatherNd", partial=True)
def gather_nd(step: Step) -> Results:
    """Takes of whole parameters what a replica's indices name, or replicated indices of a part.

    Where each example names itself, of parameters that are sharded along their first axis nothing
    is sent. Others that are sharded along an axis that is indexed are gathered. Replicated indices
    of a partial give a partial, unless that has more elements.
    """
    params, indices = step.inputs
    if has_partials(step):
        return None if grows(step) else linear_in(step, 0)
    depth = depth_of(indices)
    if params.rank is None or indices.rank is None or depth is None:
        return None
    own, theirs, last = params.sharded, indices.sharded, indices.rank - 1
    if own is not None and own.axis >= depth:
        outputs = step.emit([params.local, _whole(step, indices)])
        return step.results(outputs, own.at(last + own.axis - depth))
    places = own_places(step, 1, own)
    if own is not None and places is not None:
        return step.results(step.emit([params.local, places]), own)
    if theirs is not None and theirs.axis < last:
        return step.results(step.emit([_whole(step, params), indices.local]), theirs)
    return None


@rule("ResourceGather", "ResourceGatherNd", always=True, partial=True)
def gather_of_variable(step: Step) -> Results:
    """Takes of a variable what a replica's indices name. Sends nothing.

    Of a variable that is the sum or the mean of its copies the replicated indices give a partial.
    One that is sharded is gathered, and let go.
    """
    handle, indices = step.inputs
    step.require_sums([indices])
    layout = indices.sharded
    if handle.sharded:
        return _of_parts(step, handle, indices)
    if handle.layout != REPLICATED:
        (copy,) = step.emit([handle.local, _whole(step, indices)])
        if handle.layout == LOCAL:
            copy = step.write.divide(copy, step.program.num_replicas)
        return step.results([copy], PARTIAL)
    if indices.layout == LOCAL:
        return step.results(step.emit([handle, indices]), LOCAL)
    if layout is None or indices.rank is None:
        return step.results(step.emit([handle.local, step.replicated(indices)]), REPLICATED)
    if step.op.type == "ResourceGather":
        first, last = step.op.attr("batch_dims"), indices.rank
    else:
        first, last = 0, indices.rank - 1
    if not first <= layout.axis < last:
        return step.results(step.emit([handle.local, _whole(step, indices)]), REPLICATED)
    return step.results(step.emit([handle, indices]), layout)


def _of_parts(step: Step, handle: Tensor, indices: Tensor) -> Results:
    """Takes of a variable that is sharded what indices name, once it is gathered."""
    layout, sharding = indices.sharded, handle.sharded
    (result,) = step.op.outputs
    common = step.op.attr("batch_dims") or 0
    is_nd = step.op.type == "ResourceGatherNd"
    if indices.rank is None or result.shape.rank is None or common or is_nd:
        raise ValueError("it takes of a part of a variable otherwise than rows by their numbers")
    assert sharding is not None
    shape: list[SizeLike | None] = [None] * (result.shape.rank - indices.rank + 1)
    shape[sharding.axis] = sharding.length
    (read,) = step.writer.node("ReadVariableOp", [handle.local], dtype=result.dtype)
    table = step.replicated(
        Tensor(read, sharding, shape), "rows of a variable that is sharded are taken"
    )
    if indices.layout == LOCAL or layout is not None:
        return step.results([step.write.gather(table, indices.local)], indices.layout)
    return step.results([step.write.gather(table, step.replicated(indices))], REPLICATED)


@rule("OneHot")
def one_hot(step: Step) -> Results:
    """Keeps the shard. Sends nothing."""
    indices, depth, *values = step.inputs
    layout = indices.sharded
    if layout is None or indices.rank is None:
        return None
    at = step.op.attr("axis") % (indices.rank + 1)
    outputs = step.emit([indices.local, *map(step.replicated, (depth, *values))])
    return step.results(outputs, layout.at(layout.axis + (at <= layout.axis)))


@rule("Bincount")
def bincount(step: Step) -> Results:
    """Counts a replica's examples: a partial. Sends nothing."""
    return _counts(step)


@rule("DenseBincount")
def dense_bincount(step: Step) -> Results:
    """Keeps the shard of rows that are counted by themselves; other counts are partials.

    Whether any example of the batch has a value is no sum: without rows it is computed on the
    gathered batch.
    """
    values, size, weights = step.inputs
    layout = values.sharded or weights.sharded
    if layout is None or values.rank not in (1, 2):
        return None
    if values.rank == 1 or layout.axis == 1:
        return None if step.op.attr("binary_output") else _counts(step)
    if not (fits(values, layout) and (_is_empty(weights) or fits(weights, layout))):
        return None
    weight = step.replicated(weights) if _is_empty(weights) else part(step, weights, layout)
    outputs = step.emit([part(step, values, layout), step.replicated(size), weight])
    return step.results(outputs, layout)


@rule("HistogramFixedWidth")
def histogram(step: Step) -> Results:
    """Counts a replica's examples: a partial. Sends nothing."""
    values, limits, count = step.inputs
    layout = values.sharded
    if layout is None:
        return None
    (counts,) = step.emit([values.local, step.replicated(limits), step.replicated(count)])
    return step.results([step.masked(counts, layout)], PARTIAL)


def _counts(step: Step) -> Results:
    """Counts the values of a replica's examples, weighted or not: a partial."""
    values, size, weights = step.inputs
    layout = values.sharded or weights.sharded
    if layout is None:
        return None
    if _is_empty(weights) and values.sharded is not None:
        operands = [values.local, step.replicated(size), step.replicated(weights)]
    elif values.rank == weights.rank and fits(values, layout) and fits(weights, layout):
        operands = [part(step, values, layout), step.replicated(size), part(step, weights, layout)]
    else:
        return None
    (counts,) = step.emit(operands)
    return step.results([step.masked(counts, layout)], PARTIAL)


def _is_empty(tensor: Tensor) -> bool:
    return tensor.shape is not None and 0 in tensor.shape


def depth_of(indices: Tensor) -> int | None:
    """Returns the number of axes that indices name, their last axis."""
    size: Any = indices.shape[-1] if indices.shape else None
    return size if isinstance(size, int) else None


def _whole(step: Step, tensor: Tensor) -> Any:
    if tensor.layout == LOCAL:
        return tensor.local
    return step.replicated(
        tensor, f"{step.op.type} has parameters and indices that are both sharded"
    )
