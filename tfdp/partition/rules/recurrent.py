"""Recurrent layers in one operation, cuDNN's on GPUs: each example has a sequence of its own."""

from tfdp.partition.layouts import LOCAL, PARTIAL, Layout
from tfdp.partition.rules.operand_layouts import on_rows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import on_first

# Of their operands the weights, and those that hold lengths: both have other axes than sequences.
_WEIGHTS, _LENGTHS = 3, 4
# Of the gradient's those that the operation has kept for it, in a form of its own.
_KEPT = (11, 12)


@rule("CudnnRNNV3")
def forward(step: Step) -> Results:
    """Keeps the rows of the sequences. Sends nothing.

    What the operation keeps for its gradient is local. With dropout the first replica computes it.
    """
    return _by_sequence(step, len(step.inputs))


@rule("CudnnRNNBackpropV3")
def backward(step: Step) -> Results:
    """Keeps the rows of the sequences; the gradient of the weights is a partial. Sends nothing."""
    if any(step.inputs[index].layout != LOCAL for index in _KEPT):
        return on_first(step)
    return _by_sequence(step, _KEPT[0])


def _by_sequence(step: Step, operands: int) -> Results:
    """Writes the operation for a replica's sequences, of which the first operands have rows."""
    axis = 1 if step.op.attr("time_major") else 0
    places = {
        index: 0 if index == _LENGTHS else axis
        for index in range(operands)
        if index != _WEIGHTS and step.inputs[index].rank != 0  # a GRU has no second state
    }
    found = None if step.op.attr("dropout") else on_rows(step, places)
    if found is None:
        return on_first(step)
    layout, given = found
    outputs = step.emit(given)
    own = layout.at(axis)
    layouts: list[Layout] = [own, own, own if step.op.outputs[2].shape.rank else LOCAL]
    if step.op.type == "CudnnRNNV3":
        return step.results(outputs, [*layouts, LOCAL, LOCAL])
    outputs[-1] = step.masked(outputs[-1], layout)
    return step.results(outputs, [*layouts, PARTIAL])
