"""Side effects: they happen once, on the first replica, in the program's order."""

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Called, Output, Writer, unique_name
from tfdp.partition.layouts import LOCAL, REPLICATED
from tfdp.partition.program_record import Content
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Tensor, static_shape

# Operations that are stateful in TensorFlow's books, and compute the same on all replicas.
_NO_EFFECTS = {
    "CheckNumerics",
    "CheckNumericsV2",
    "DeepCopy",
    "GraphDefVersion",
    "GuaranteeConst",
    "IsTensorFloat32Enabled",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "StatelessRandomGetAlg",
}


def is_effect(op: SourceOp) -> bool:
    """Returns whether an operation does something that must happen once."""
    return op.is_stateful and op.type not in _NO_EFFECTS


def on_first(step: Step) -> list[Tensor]:
    """Runs the operation on the first replica, with whole inputs; all get what it gives.

    Of what is each replica's own it is given the first one's. The others wait for what it gives, or
    for nothing where it gives nothing.
    """
    if step.program.num_replicas > 1:
        for output in step.op.outputs:
            if output.dtype in (tf.resource, tf.variant):
                raise ValueError("what it makes cannot be given to the other replicas")
    outputs = branch_on_first(step)
    if outputs and step.program.num_replicas > 1:
        specs = [tf.TensorSpec(out.shape, out.dtype) for out in step.op.outputs]
        collective = step.program.communicator.from_first(specs)
        contents = [
            Content.of(each, static_shape(out.shape))
            for each, out in zip(outputs, step.op.outputs, strict=True)
        ]
        outputs = step.program.exchange(
            step.writer, "from first", collective, outputs, step.op, _why(step), contents
        )
    return step.results(outputs, REPLICATED)


def _why(step: Step) -> str:
    return f"{step.op.type} happens once"


def branch_on_first(step: Step) -> list[Output]:
    """Runs the operation on the first replica, with whole inputs; the others get zeros."""
    inputs = [
        tensor.local if tensor.layout == LOCAL else step.whole(tensor, _why(step))
        for tensor in step.inputs
    ]
    if step.program.num_replicas == 1:
        return step.emit(inputs)
    run = _branch(step, runs=True)
    skip = _branch(step, runs=False)
    return step.writer.node(
        "If",
        [step.write.equal(step.program.rank, 0), *inputs],
        Tcond=tf.bool,
        Tin=[each.dtype for each in inputs],
        Tout=[each.dtype for each in step.op.outputs],
        then_branch=Called(run),
        else_branch=Called(skip),
        output_shapes=[],
        _lower_using_switch_merge=True,
    )


def _branch(step: Step, runs: bool) -> str:
    """Writes what the first replica runs, or what the others have in place of its results."""
    writer = Writer(unique_name("effect" if runs else "no_effect"))
    arguments = [
        writer.argument(f"input_{index}", tensor.dtype) for index, tensor in enumerate(step.inputs)
    ]
    if runs:
        outputs = writer.copy(step.op.node, arguments)
    else:
        outputs = [
            writer.constant(_nothing_like(out.shape, out.dtype), out.dtype)
            for out in step.op.outputs
        ]
    step.program.functions.append(writer.finish(outputs, writer.written if runs else ()))
    return writer.name


def _nothing_like(shape: tf.TensorShape, dtype: tf.DType) -> np.ndarray:
    """Returns zeros, or empty texts, of a shape in which what is unknown is 0."""
    sizes = [size or 0 for size in shape.as_list()] if shape.rank is not None else []
    return np.full(sizes, b"" if dtype == tf.string else 0, dtype.as_numpy_dtype)


@rule("NoOp", always=True)
def nothing(step: Step) -> Results:
    """Waits for what the operation waits for, on every replica."""
    step.emit([])
    return []
