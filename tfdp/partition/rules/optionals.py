"""Optionals, in which branches leave for their gradients what only one of them has made."""

import tensorflow as tf

from tfdp.partition.layouts import REPLICATED, Listed
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.tensors import Tensor


@rule("OptionalNone", always=True)
def none(step: Step) -> Results:
    """Gives an optional of nothing. Sends nothing."""
    return step.results(step.emit([]), Listed(None, tf.variant, kinds=()))


@rule("OptionalFromValue", always=True)
def from_value(step: Step) -> Results:
    """Gives an optional of a tensor in its layout. Sends nothing; several tensors are whole.

    So is one where what branches keep could not be told apart: see `ProgramBuilder.keeps_whole`.
    """
    if len(step.inputs) != 1:
        return None
    (value,) = step.inputs
    if step.program.keeps_whole:
        value = _whole(step, value)
    kind = value.dtype, step.op.inputs[0].shape.rank, value.layout
    layout = Listed(None, tf.variant, kinds=(kind,))
    return step.results(step.emit([value]), layout, entries=[value.entries])


@rule("OptionalGetValue")
def get_value(step: Step) -> Results:
    """Gives the tensor in its layout. Sends nothing."""
    (optional,) = step.inputs
    first, *others = step.op.outputs
    if not isinstance(optional.layout, Listed) or others:
        return None
    layout = optional.layout.value(first.dtype, first.shape.rank) or REPLICATED
    outputs = step.emit([optional], output_shapes=[tf.TensorShape(None)])  # of the replica's part
    return step.results(outputs, layout, entries=[optional.entries])


@rule("OptionalHasValue")
def has_value(step: Step) -> Results:
    """Gives what each replica's optional says. Sends nothing."""
    return step.results(step.emit(step.inputs), REPLICATED)


def _whole(step: Step, value: Tensor) -> Tensor:
    """Returns a value that is cut, or a list of such, whole."""
    why = "branches keep it with what cannot be told from it"
    if isinstance(value.layout, Listed) and not value.layout.is_whole:
        layout = Listed(REPLICATED, value.layout.dtype)
        return Tensor(step.to(value, layout, why), layout, None, value.entries)
    if value.sharded is None:
        return value
    step.require_joined([value])
    step.note_whole(why)
    return Tensor(step.whole(value, why), REPLICATED, value.shape, value.entries)
