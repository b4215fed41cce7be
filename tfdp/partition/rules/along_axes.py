"""Operations along axes that keep the examples apart where the axes are not the batch's."""

from __future__ import annotations

from typing import Any

from tfdp.partition.layouts import Sharded
from tfdp.partition.rules.concatenation import fits, part
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.slicing import constant_axes, has_partials, linear_in
from tfdp.partition.sizes import SizeLike, is_size
from tfdp.partition.tensors import Tensor


@rule("ReverseV2", "Roll", "Cumsum", partial=True)
def linear(step: Step) -> Results:
    """Keeps the cut along other axes; keeps summands. Sends nothing."""
    return linear_in(step, 0) if has_partials(step) else _along(step)


@rule("Cumprod", "CumulativeLogsumexp")
def cumulative(step: Step) -> Results:
    """Keeps the cut along other axes. Sends nothing."""
    return _along(step)


@rule("ReverseSequence", partial=True)
def reverse_sequence(step: Step) -> Results:
    """Keeps the cut, unless sequences lie along it; keeps summands. Sends nothing.

    Where the axis of the sequences' batch is cut, so are their lengths.
    """
    tensor, lengths = step.inputs
    if has_partials(step):
        return linear_in(step, 0)
    if tensor.rank is None:
        return None
    sequence, batch = (step.op.attr(name) % tensor.rank for name in ("seq_dim", "batch_dim"))
    layout = tensor.sharded or (lengths.sharded and lengths.sharded.at(batch))
    if layout is None or layout.axis == sequence:
        return None
    if layout.axis != batch:
        operands = [tensor.local, step.whole(lengths)]
    elif fits(tensor, layout) and fits(lengths, layout.at(0)):
        operands = [part(step, tensor, layout), part(step, lengths, layout.at(0))]
    else:
        return None
    return step.results(step.emit(operands), layout, [tensor.shape])


@rule("ArgMax", "ArgMin")
def arg(step: Step) -> Results:
    """Keeps the cut along another axis. Sends nothing."""
    tensor, dimension = step.inputs
    layout = tensor.sharded
    axes = None if tensor.rank is None else constant_axes(dimension, tensor.rank)
    if layout is None or axes is None or layout.axis in axes:
        return None
    (axis,) = axes
    outputs = step.emit([tensor.local, step.whole(dimension)])
    shape = tensor.dims()
    del shape[axis]
    return step.results(outputs, layout.at(layout.axis - (axis < layout.axis)), [shape])


@rule("TopK", "TopKV2")
def top(step: Step) -> Results:
    """Keeps the cut of an axis that is not the last. Sends nothing."""
    tensor, *count = step.inputs
    layout = _beside_last(tensor)
    if layout is None:
        return None
    outputs = step.emit([tensor.local, *map(step.whole, count)])
    size = known_scalar(count[0]) if count else step.op.attr("k")
    return step.results(outputs, layout, [[*tensor.dims()[:-1], size]] * 2)


@rule("NthElement")
def nth(step: Step) -> Results:
    """Keeps the cut of an axis that is not the last. Sends nothing."""
    tensor, number = step.inputs
    layout = _beside_last(tensor)
    if layout is None:
        return None
    outputs = step.emit([tensor.local, step.whole(number)])
    return step.results(outputs, layout, [tensor.dims()[:-1]])


@rule("InTopK", "InTopKV2")
def in_top(step: Step) -> Results:
    """Keeps the cut of rows. Sends nothing if predictions and targets are cut alike."""
    predictions, targets, *count = step.inputs
    layout, both = predictions.sharded or targets.sharded, (predictions, targets)
    if layout is None or layout.axis != 0 or not all(fits(each, layout) for each in both):
        return None
    operands = [part(step, each, layout) for each in both]
    return step.results(step.emit([*operands, *map(step.whole, count)]), layout)


@rule("LowerBound", "UpperBound")
def search(step: Step) -> Results:
    """Keeps the cut of rows, and of the values that are searched for in a row. Sends nothing.

    Sorted rows that are cut along the sorting are made whole.
    """
    rows, values = step.inputs
    layout = values.sharded or rows.sharded
    if rows.sharded is not None and rows.sharded.axis == 0:
        layout = rows.sharded
    if layout is None or not fits(values, layout) or (layout.axis == 0 and not fits(rows, layout)):
        return None
    if layout.axis == 0:
        sorted_rows = part(step, rows, layout)
    elif values.sharded is not None:
        sorted_rows = step.whole(rows, "values are searched for in it")
    else:
        return None
    return step.results(
        step.emit([sorted_rows, part(step, values, layout)]), layout, [values.shape]
    )


def known_scalar(tensor: Tensor) -> SizeLike | None:
    """Returns a scalar's value where it is known to be a size, else None."""
    value: Any = None if tensor.entries is None else tensor.entries[()]
    return value if is_size(value) else None


def _along(step: Step) -> Results:
    tensor, axes = step.inputs[0], step.inputs[-1]
    layout = tensor.sharded
    named = None if tensor.rank is None else constant_axes(axes, tensor.rank)
    if layout is None or named is None or layout.axis in named:
        return None
    outputs = step.emit([tensor.local, *map(step.whole, step.inputs[1:])])
    return step.results(outputs, layout, [tensor.shape])


def _beside_last(tensor: Tensor) -> Sharded | None:
    layout = tensor.sharded
    if layout is None or tensor.rank is None or layout.axis == tensor.rank - 1:
        return None
    return layout
