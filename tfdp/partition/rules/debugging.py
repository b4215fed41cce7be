"""Operations by which TensorFlow watches a program: checks, summaries, and what is written down."""

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules.reductions import meeting
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import branch_on_first

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
    """Gives a summand: a replica summarizes its share. Sends nothing, or whether all are finite.

    What is not finite adds up to what is not, so a check of the sum is one of the whole tensor.
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
    """Keeps the cut; of several checks that fail the first one of the program does. Sends nothing.

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
    """Keeps the cut; what is written down is gathered for the first replica, which writes it."""
    first = step.inputs[0]
    branch_on_first(step)
    results = step.results([step.write.identity(first.local)], first.layout)
    results[0].whole = results[0].whole or first.whole
    return results


@rule("Assert", always=True)
def asserted(step: Step) -> Results:
    """Gathers what is asserted and what is said of it: all replicas raise the same error."""
    why = "Assert is of the whole batch"
    step.emit([each if each.layout == LOCAL else step.whole(each, why) for each in step.inputs])
    return []
