"""Tensors joined along an axis, and taken apart along one."""

import dataclasses
from collections.abc import Sequence

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Sharded
from tfdp.partition.rules.elementwise import can_join_partials, dominant
from tfdp.partition.rules.operand_layouts import has_partials
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.slicing import blocks_in, entries_of
from tfdp.partition.shape_inference.known_joined_shapes import parts_of
from tfdp.partition.shape_inference.known_shapes import axes_of
from tfdp.partition.sizes import divided
from tfdp.partition.tensors import Tensor


@rule("ConcatV2", partial=True)
def concat(step: Step) -> Results:
    """Keeps the shard; tensors joined along it become blocks of all examples. Sends nothing.

    Partials, joined with each other and with a few replicated entries, are a partial. An operand
    that is sharded otherwise than the largest one is gathered.
    """
    *values, axis = step.inputs
    if has_partials(step):
        return _joined_partials(step, values)
    rank = values[0].rank
    axes = None if rank is None else axes_of(axis, rank)
    if rank is None or axes is None or any(tensor.rank != rank for tensor in values):
        return None
    (at,) = axes
    beside = [each for each in values if each.sharded is not None and each.sharded.axis != at]
    spot = dominant(beside, rank)
    if spot is None:
        return _end_to_end(step, values, at)
    return _side_by_side(step, values, spot, spot)


@rule("Pack", partial=True)
def pack(step: Step) -> Results:
    """Keeps the shard; partials with a few replicated entries are a partial. Sends nothing.

    An operand that is sharded otherwise than the largest one is gathered.
    """
    values = step.inputs
    if has_partials(step):
        return _joined_partials(step, values)
    rank = values[0].rank
    if rank is None or any(tensor.rank != rank for tensor in values):
        return None
    spot = dominant(values, rank)
    if spot is None:
        return None
    at = step.op.attr("axis") % (rank + 1)
    return _side_by_side(step, values, spot, spot.at(spot.axis + (at <= spot.axis)))


@rule("Unpack", partial=True)
def unpack(step: Step) -> Results:
    """Keeps the shard of another axis, and partials. Sends nothing."""
    (tensor,) = step.inputs
    if tensor.layout == PARTIAL:
        return step.results(step.emit([tensor]), PARTIAL)
    layout = tensor.sharded
    if layout is None or tensor.rank is None:
        return None
    at = step.op.attr("axis") % tensor.rank
    if layout.axis == at:
        return None
    return step.results(step.emit([tensor]), layout.at(layout.axis - (at < layout.axis)))


@rule("Split", partial=True)
def split(step: Step) -> Results:
    """Keeps the shard of another axis, or takes blocks apart; keeps partials. Sends nothing."""
    axis, tensor = step.inputs
    count = len(step.op.outputs)
    found = _split_along(step, tensor, axis)
    if found is None:
        return None
    layout, at = found
    if isinstance(layout, Sharded) and layout.axis == at:
        outer = divided(layout.outer, count)
        if outer is None:
            return None
        layout = dataclasses.replace(layout, outer=outer)
    return step.results(step.emit([step.replicated(axis), tensor.local]), layout)


@rule("SplitV", partial=True)
def split_unevenly(step: Step) -> Results:
    """Keeps the shard of another axis, or takes blocks apart; keeps partials. Sends nothing."""
    tensor, sizes, axis = step.inputs
    found = _split_along(step, tensor, axis)
    if found is None:
        return None
    layout, at = found
    count = len(step.op.outputs)
    local, layouts = step.replicated(sizes), [layout] * count
    if isinstance(layout, Sharded) and layout.axis == at:
        outers = [blocks_in(each, layout) for each in parts_of(sizes, tensor.dim(at), count)]
        if any(outer is None or outer == 0 for outer in outers):
            return None
        layouts = [dataclasses.replace(layout, outer=outer) for outer in outers]
        counts = [entries_of(step, layout, outer) for outer in outers]
        local = step.write.pack(counts, sizes.dtype)
    return step.results(step.emit([tensor.local, local, step.replicated(axis)]), layouts)


def fits(tensor: Tensor, layout: Sharded) -> bool:
    """Returns whether a replica's part of a tensor in a layout is certainly that of its examples.

    The tensor has as many entries along the axis as the layout; what is local is such a part.
    """
    if tensor.layout in (layout, LOCAL):
        return True
    if tensor.rank is None or tensor.rank <= layout.axis:
        return False
    return tensor.dim(layout.axis) == layout.length


def part(step: Step, tensor: Tensor, layout: Sharded) -> Output:
    """Returns the replica's part of a tensor that fits a layout."""
    if tensor.layout == LOCAL:
        return tensor.local
    return step.part(tensor, layout, f"{step.op.type} has operands that are sharded otherwise")


def _side_by_side(step: Step, values: Sequence[Tensor], spot: Sharded, result: Sharded) -> Results:
    """Joins the parts of tensors that are sharded at `spot`."""
    if not all(fits(tensor, spot) for tensor in values):
        return None
    parts = [part(step, tensor, spot) for tensor in values]
    others = [step.replicated(tensor) for tensor in step.inputs[len(values) :]]
    return step.results(step.emit([*parts, *others]), result)


def _end_to_end(step: Step, values: Sequence[Tensor], at: int) -> Results:
    """Joins tensors along the axis that is sharded: the blocks of one follow those of another."""
    spot = dominant(values, values[0].rank or 0)
    if spot is None:
        return None
    layouts = []
    for tensor in values:
        own = tensor.sharded
        if own is None or (own.batch, own.inner) != (spot.batch, spot.inner):
            outer = blocks_in(tensor.dim(at), spot)
            if outer is None or outer == 0 or tensor.layout == LOCAL:
                return None
            own = dataclasses.replace(spot, outer=outer)
        layouts.append(own)
    parts = [part(step, *each) for each in zip(values, layouts, strict=True)]
    outer = sum(layout.outer for layout in layouts)
    outputs = step.emit([*parts, step.replicated(step.inputs[-1])])
    return step.results(outputs, dataclasses.replace(spot, outer=outer))


def _joined_partials(step: Step, values: Sequence[Tensor]) -> Results:
    """Joins partials to a partial; replicated operands join them on the first replica."""
    if any(tensor.layout not in (PARTIAL, REPLICATED) for tensor in values):
        return None
    whole = [tensor for tensor in values if tensor.layout == REPLICATED]
    if any(tensor.layout == PARTIAL for tensor in step.inputs[len(values) :]):
        return None
    if not can_join_partials(whole):
        return None
    operands = [
        step.first_only(tensor.local) if tensor.layout == REPLICATED else tensor.local
        for tensor in values
    ]
    outputs = step.emit([*operands, *step.inputs[len(values) :]])
    return step.results(outputs, PARTIAL)


def _split_along(step: Step, tensor: Tensor, axis: Tensor) -> tuple[Layout, int | None] | None:
    """Returns the layout and the axis along which a tensor is taken apart, None where unknown.

    None: it cannot be taken apart as a replica holds it.
    """
    others = [each for each in step.inputs if each is not tensor]
    if any(each.layout == PARTIAL for each in others):
        return None
    axes = None if tensor.rank is None else axes_of(axis, tensor.rank)
    at = None if axes is None else axes[0]
    if tensor.layout == PARTIAL:
        return PARTIAL, at
    if tensor.sharded is None or at is None:
        return None
    return tensor.sharded, at
