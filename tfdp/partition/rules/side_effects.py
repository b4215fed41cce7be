"""Side effects: they happen once, on the first replica, in the program's order.

TensorFlow watches programs by some of them: assertions, checks, summaries, `tf.debugging`.
"""

import numpy as np
import tensorflow as tf

from tfdp.partition.emit.writer import Called, Output, Writer, unique_name
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Sharded
from tfdp.partition.program_record import Content
from tfdp.partition.rules.reductions import meeting
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
        tensor.local if tensor.layout == LOCAL else step.replicated(tensor, _why(step))
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


# What a summary tells of a tensor, by TensorFlow's numbers: whether it has a number that is not
# finite; how many of each kind; the same with more of the tensor; its shape; and in three places
# whether it has one below all numbers, one above, or none at all, as itself and else 0.
_ANY, _COUNTS, _ALL_COUNTS, _SHAPE, _THREE = 2, 3, 4, 5, 8

# How many places a summary has, and how many of them describe the tensor; the others count what is
# in it.
_PLACES = {_COUNTS: (5, 1), _ALL_COUNTS: (11, 4), _THREE: (3, 0)}
_MOST_SIZES = 6


@rule("DebugNumericSummaryV2")
def summary(step: Step) -> Results:
    """Gives a partial: a replica summarizes its share. Sends nothing, or whether all are finite.

    What is not finite adds up to what is not, so a check of the sum is one of the global tensor.
    """
    (tensor,) = step.inputs
    mode, layout = step.op.attr("tensor_debug_mode"), tensor.sharded
    if layout is None:
        if tensor.layout == LOCAL and mode == _THREE:
            return step.results(step.emit([tensor]), PARTIAL, [[3]])
        return None
    if mode == _SHAPE and tensor.rank is not None:
        return step.results([_of_shape(step, layout)], REPLICATED)
    if mode not in (_ANY, *_PLACES):
        return None
    write = step.write
    (own,) = step.emit([tensor])
    if mode == _ANY:
        name, found = write.slice(own, [0], [1]), step.masked(write.slice(own, [1], [1]), layout)
        found = meeting(step, found, "Max", [1], "whether all numbers of a tensor are finite")
        return step.results([write.concat([name, found], 0)], REPLICATED)
    counted, (places, describing) = step.masked(own, layout), _PLACES[mode]
    if describing:
        said = write.slice(own, [0], [describing])
        said = write.select(write.equal(step.program.rank, 0), said, write.zeros_like(said))
        counted = write.concat([said, write.slice(counted, [describing], [-1])], 0)
    return step.results([counted], PARTIAL, [[places]])


def _of_shape(step: Step, layout: Sharded) -> Output:
    (tensor,), write = step.inputs, step.write
    (own,) = step.emit([tensor])
    sizes = [write.cast(step.size(size), own.dtype) for size in tensor.dims()]
    count = write.reduce("Prod", write.pack(sizes, own.dtype), [0], keep=True)
    last = [*sizes[-_MOST_SIZES:], *[0] * (_MOST_SIZES - len(sizes))]
    return write.concat([write.slice(own, [0], [3]), count, write.pack(last, own.dtype)], 0)


@rule("CheckNumericsV2", always=True)
def checked(step: Step) -> Results:
    """Keeps the shard; of several checks that fail, the program's first does. Sends nothing.

    They wait for each other, as those of what was summed together would all fail at once.
    """
    (tensor,) = step.inputs
    nodes = reversed(step.writer.nodes)
    before = next((each.name for each in nodes if each.op == step.op.type), None)
    if before is not None:
        step.writer.control = (*step.writer.control, f"^{before}")
    return step.results(step.emit([tensor]), tensor.layout)


@rule("DebugIdentityV2", "Print", always=True)
def written(step: Step) -> Results:
    """Keeps the shard; what is written down is gathered for the first replica, which writes it."""
    first = step.inputs[0]
    branch_on_first(step)
    results = step.results([step.write.identity(first.local)], first.layout)
    results[0].replicated = results[0].replicated or first.replicated
    return results


@rule("Assert", always=True)
def asserted(step: Step) -> Results:
    """Gathers what is asserted and what is said of it: all replicas raise the same error."""
    why = "Assert is of the whole batch"
    step.emit(
        [each if each.layout == LOCAL else step.replicated(each, why) for each in step.inputs]
    )
    return []
