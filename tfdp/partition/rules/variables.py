"""Variables: each replica reads and writes its own copy.

The layout of a variable's handle says how the copies make the value:

- replicated: all copies are the value. What is written is gathered first.
- partial: the value is the sum of the copies, as of `tf.VariableSynchronization.ON_READ` with
  `tf.VariableAggregation.SUM`: partials are written without a collective.
- local: the value is the mean of the copies, as of ON_READ with MEAN.
- sharded: each replica's copy is its part, by a `sizes.FixedShard`, for good.
"""

from collections.abc import Sequence

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Sharded
from tfdp.partition.rules import deterministic_scatter
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.sizes import FixedShard
from tfdp.partition.tensors import Tensor

# What these write into a copy must be whole: they are not linear, or write a part.
WRITES = [
    "ResourceApplyAdaMax",
    "ResourceApplyAdadelta",
    "ResourceApplyAdagrad",
    "ResourceApplyAdagradDA",
    "ResourceApplyAdagradV2",
    "ResourceApplyAdam",
    "ResourceApplyAdamWithAmsgrad",
    "ResourceApplyAddSign",
    "ResourceApplyCenteredRMSProp",
    "ResourceApplyFtrl",
    "ResourceApplyFtrlV2",
    "ResourceApplyGradientDescent",
    "ResourceApplyKerasMomentum",
    "ResourceApplyMomentum",
    "ResourceApplyPowerSign",
    "ResourceApplyProximalAdagrad",
    "ResourceApplyProximalGradientDescent",
    "ResourceApplyRMSProp",
    "ResourceCountUpTo",
    "ResourceScatterNdAdd",
    "ResourceScatterNdMax",
    "ResourceScatterNdMin",
    "ResourceScatterNdSub",
    "ResourceScatterNdUpdate",
    "ResourceSparseApplyAdadelta",
    "ResourceSparseApplyAdagrad",
    "ResourceSparseApplyAdagradDA",
    "ResourceSparseApplyAdagradV2",
    "ResourceSparseApplyCenteredRMSProp",
    "ResourceSparseApplyFtrl",
    "ResourceSparseApplyFtrlV2",
    "ResourceSparseApplyKerasMomentum",
    "ResourceSparseApplyMomentum",
    "ResourceSparseApplyProximalAdagrad",
    "ResourceSparseApplyProximalGradientDescent",
    "ResourceSparseApplyRMSProp",
    "ResourceStridedSliceAssign",
]

# Of these the variable's part may take the rows that are its own.
SCATTERS = [
    "ResourceScatterAdd",
    "ResourceScatterDiv",
    "ResourceScatterMax",
    "ResourceScatterMin",
    "ResourceScatterMul",
    "ResourceScatterSub",
    "ResourceScatterUpdate",
]

ASSIGNMENTS = ["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]

_WRITTEN = "it is written to a variable"

READS = ["VarIsInitializedOp", "DisableCopyOnRead"]


@rule("ReadVariableOp", always=True, partial=True)
def read(step: Step) -> Results:
    """Gives the value: whole, a partial of it, or the replica's part. Sends nothing."""
    (handle,) = step.inputs
    (copy,) = step.emit([handle])
    if handle.layout == REPLICATED or handle.sharded:
        return step.results([copy], handle.layout)
    if handle.layout == LOCAL:
        copy = step.write.divide(copy, step.program.num_replicas)
    return step.results([copy], PARTIAL)


@rule("VariableShape", always=True)
def shape_of(step: Step) -> Results:
    """Gives the whole variable's shape. Sends nothing."""
    (handle,) = step.inputs
    (shape,) = step.emit([handle])
    if handle.sharded:
        write, axis = step.write, handle.sharded.axis
        length = write.cast(step.size(handle.sharded.length), shape.dtype)
        before, after = write.slice(shape, [0], [axis]), write.slice(shape, [axis + 1], [-1])
        shape = write.concat([before, write.pack([length], shape.dtype), after], 0)
    return step.results([shape], REPLICATED)


@rule(*ASSIGNMENTS, always=True, partial=True)
def assign(step: Step) -> Results:
    """Writes the whole value, which is summed or gathered for it; of partial ones a partial, and
    of those that are sharded the replica's part.
    """
    handle, value = step.inputs
    if handle.layout == PARTIAL:
        if value.layout == PARTIAL:
            step.emit([handle, value])
        else:
            step.emit([handle, step.first_only(step.replicated(value, _WRITTEN))])
        return []
    if handle.sharded:
        step.emit([handle, step.scattered(value, handle.sharded, _WRITTEN)])
        return []
    step.require_joined([value])
    step.emit([handle, _written(step, value)])
    return []


def _written(step: Step, value: Tensor) -> Output:
    """Returns what every copy gets: the whole value; or its own, where replicas train alone."""
    if value.layout == LOCAL and step.program.communicator.keeps_partials:
        return value.local
    return step.replicated(value, _WRITTEN)


@rule(*SCATTERS, always=True, partial=True)
def scatter(step: Step) -> Results:
    """Writes rows, which are gathered first; of a variable that is sharded those of its part."""
    handle, indices, updates = step.inputs
    step.require_sums([indices, updates])
    places, rows = (_written(step, each) for each in (indices, updates))
    layout = handle.sharded
    if layout is None:
        _check_has_copies(step, [handle])
    elif layout.axis == 0:
        places, rows = _of_part(step, layout, places, rows, indices.rank, updates.rank)
    elif updates.rank is None or indices.rank is None:
        raise ValueError("it writes rows of an unknown number of axes to a part of a variable")
    elif updates.rank:  # a scalar is written to all
        axis = indices.rank + layout.axis - 1
        begin, count = step.start(layout), step.entries(layout)
        rows = step.write.slice_axis(rows, updates.rank, axis, begin, count)
    if layout is None:
        deterministic_scatter.emit(step, [handle.local, places, rows])
    else:  # there is one copy of each part
        step.emit([handle.local, places, rows])
    return []


def _of_part(
    step: Step,
    layout: Sharded,
    places: Output,
    rows: Output,
    rank_of_places: int | None,
    rank_of_rows: int | None,
) -> tuple[Output, Output]:
    """Returns which rows of a replica's part are written, and with what.

    Places that the variable does not have are an error of the first replica, or the last.
    """
    if rank_of_places != 1 or rank_of_rows is None:
        raise ValueError("it writes rows to a part of a variable by places of several axes")
    assert isinstance(layout.batch, FixedShard)
    write, dtype, inner = step.write, places.dtype, layout.batch.bounds[1:-1]
    begins = write.constant([dtype.min, *inner], dtype)
    ends = write.constant([*inner, dtype.max], dtype)
    rank = step.program.rank
    begin, end = write.gather(begins, rank), write.gather(ends, rank)
    chosen = write.where(write.within(places, begin, end))
    own = write.subtract(write.gather(places, chosen), write.cast(step.start(layout), dtype))
    return own, write.gather(rows, chosen) if rank_of_rows else rows


def _check_has_copies(step: Step, handles: Sequence[Tensor]) -> None:
    if any(handle.layout != REPLICATED for handle in handles):
        raise ValueError(
            "it writes to a variable that each replica has a share of, or a part, in a way that "
            "is no assignment, addition or subtraction"
        )


@rule(*WRITES, *READS, always=True, partial=True)
def write(step: Step) -> Results:
    """Gives every replica's copy the same: what is given is summed or gathered first."""
    handles = [tensor for tensor in step.inputs if tensor.dtype.name == "resource"]
    if step.op.type in WRITES:
        _check_has_copies(step, handles)
    others = [tensor for tensor in step.inputs if tensor not in handles]
    step.require_sums(others)
    given = [
        tensor.local if tensor in handles else _written(step, tensor) for tensor in step.inputs
    ]
    return step.results(deterministic_scatter.emit(step, given), REPLICATED)
