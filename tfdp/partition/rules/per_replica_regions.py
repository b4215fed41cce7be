"""Regions and calls in which each replica computes by itself, and the marks of their boundaries.

See `marks` and `per_replica_call`.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.emit.writer import Output, called
from tfdp.partition.flattening import CALLS
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, layout_of_parts
from tfdp.partition.marks import (
    BOUNDARY,
    FIRST_ROWS,
    MEAN,
    MORE_ROWS,
    REPLICATED_IN,
    ROWS,
    boundary_of,
    part_asked_for,
)
from tfdp.partition.per_replica_call import PerReplicaCodeError, per_replica_call_of
from tfdp.partition.program_record import Content
from tfdp.partition.rules.elementwise import identity
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.tensors import Tensor, static


@rule(*CALLS, always=True, partial=True, apart=True)
def call(step: Step) -> Results:
    """Takes partials, rows of partials, and per-replica values; all else is gathered.

    Rows that are sharded by examples, with their places, are partials of what they are rows of. It
    sends what the replicas' function sends, and gives what is whole, each replica's own, or parts.
    """
    found = per_replica_call_of(step.op)
    assert found is not None  # other calls are taken apart
    given: list[Output] = []
    sent: list[Content] = []
    are_partials: list[bool] = []
    inputs = iter(step.inputs)
    for is_rows in found.are_rows:
        values = [next(inputs) for _ in range(3 if is_rows else 1)]
        own = _partials(step, values)
        are_partials.append(own is not None)
        given += own or [_known(step, each) for each in values]
        if own:
            sent.append(Content.of_tensor(values[0]))
    specs = [tf.TensorSpec(static(each), each.dtype) for each in step.inputs[: len(given)]]
    if found.takes_rows and step.program.num_replicas > 1 and any(are_partials):
        _check_independent(step, given)
        given += _rows(step)
        specs += [tf.TensorSpec([], tf.int32)] * 2
    dtypes = [output.dtype for output in step.op.outputs]
    # Those of a branch, or of a loop, have no order with those of the program's function.
    beside = found.beside and step.writer is step.program.main
    try:
        collective = step.program.communicator.by_replicas(
            lambda *tensors: found.run(tensors, are_partials), specs, beside
        )
    except Exception as error:
        raise PerReplicaCodeError from error
    assert collective.dtypes[: len(dtypes)] == dtypes
    outputs = step.program.exchange(
        step.writer,
        "update",
        collective,
        given,
        step.op,
        "each replica runs its own code",
        sent,
        beside=beside,
    )
    if found.shardings is not None:
        return step.results(
            outputs[: len(dtypes)], [layout_of_parts(sharding) for sharding in found.shardings]
        )
    layout = REPLICATED if found.gives_alike else LOCAL
    return step.results(outputs[: len(dtypes)], layout)


def _rows(step: Step) -> list[Output]:
    """Returns how many examples the replica has, and how many all have.

    Raises:
      ValueError: There is no one batch.
    """
    batch = step.program.only_batch
    if batch is None:
        raise ValueError(
            "ranks whose examples may be left out need one batch, of which each has examples, but "
            f"the program has {len(step.program.places)}: give it tensors of one length, to `fit` "
            "or to a function of `strategy.partitioned`"
        )
    step.program.may_skip = True
    place = step.program.place(batch)
    return [place.count, place.total]


def _check_independent(step: Step, values: Sequence[Output]) -> None:
    """Checks that nothing that replicas exchange comes before some values.

    Raises:
      ValueError: Something does; it names the lines.
    """
    program, writer = step.program, step.writer
    nodes = {each.name: each for each in writer.nodes}
    before, left = set[str](), [each.node for each in values]
    while left:
        node = nodes.get(left.pop())
        if node is not None and node.name not in before:
            before.add(node.name)
            left += [name.partition(":")[0] for name in node.input if not name.startswith("^")]
    functions = {name for node in before for name in called(nodes[node])}
    found = [
        each
        for each in program.report.exchanged
        if (each.function == writer.name and each.node in before) or each.function in functions
    ]
    if found:
        places = dict.fromkeys(f"{each.operation} at {each.line}" for each in found)
        raise ValueError(
            "the gradients of ranks that come first are summed without the others, so they must "
            "not depend on what all ranks exchange in the step, but they depend on what is "
            f"exchanged for {'; '.join(places)}. For BatchNormalization use "
            'batch_normalization="per_replica" of the strategy'
        )


def _known(step: Step, tensor: Tensor) -> Output:
    if tensor.layout == LOCAL:
        return tensor.local
    return step.replicated(tensor, "a replica's own code uses it")


def _partials(step: Step, values: Sequence[Tensor]) -> list[Output] | None:
    """Returns what a replica holds of one value, if that is its partial."""
    first, *others = values
    if step.program.num_replicas == 1 and all(each.layout == REPLICATED for each in values):
        return [each.local for each in values]  # a sum of one partial
    if not others:
        return [first.local] if first.layout == PARTIAL else None
    if first.sharded is None or first.layout != others[0].layout:
        return None
    if first.sharded.axis != 0:
        return None
    places, shape = others
    return [step.masked(first.local, first.sharded), places.local, step.replicated(shape)]


@rule(BOUNDARY, always=True, partial=True)
def cross(step: Step) -> Results:
    """Takes rows that are sharded along the first axis, which are local then, and what is whole.

    Out of the region it gives rows in the layout of those that went in; and partials, which are
    the replica's own or, of a mean, that by its examples. Sends nothing. Where the rows that went
    in are not sharded, all is replicated, within the region, too. A mark for a part sends partials
    so that each replica gets the sum of its part.
    """
    (tensor,) = step.inputs
    found = boundary_of(step.op.attr("message"))
    if found is None:
        part = part_asked_for(step.op.attr("message"))
        if part is None:
            return identity(step)
        return step.results([step.scattered(tensor, part, "its variable is sharded")], part)
    kind, region = found
    regions = step.program.regions
    if kind == REPLICATED_IN:
        return step.results([step.replicated(tensor)], REPLICATED)
    if kind == FIRST_ROWS:
        is_sharded = tensor.sharded is not None and tensor.sharded.axis == 0
        regions[region] = tensor.sharded if is_sharded else None
    layout = regions[region]
    if layout is None:
        return step.results([step.replicated(tensor, "a region has no sharded rows")], REPLICATED)
    if kind in (FIRST_ROWS, MORE_ROWS):
        return step.results([step.to(tensor, layout)], LOCAL)
    if kind == ROWS:
        is_own = tensor.layout == LOCAL
        return step.results([tensor.local if is_own else step.to(tensor, layout)], layout)
    own = step.by_rows(tensor.local, layout) if kind == MEAN else tensor.local
    return step.results([step.masked(own, layout)], PARTIAL)
