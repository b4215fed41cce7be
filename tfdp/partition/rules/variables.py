"""Variables: each replica reads and writes its own copy.

The layout of a variable's handle says how the copies make the value:

- replicated: all copies are the value. What is written is made whole first.
- partial: the value is the sum of the copies, as of `tf.VariableSynchronization.ON_READ` with
  `tf.VariableAggregation.SUM`: summands are written without a collective.
- local: the value is the mean of the copies, as of ON_READ with MEAN.
"""

from __future__ import annotations

from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED
from tfdp.partition.rules.registry import Results, Step, rule

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
    "ResourceScatterAdd",
    "ResourceScatterDiv",
    "ResourceScatterMax",
    "ResourceScatterMin",
    "ResourceScatterMul",
    "ResourceScatterNdAdd",
    "ResourceScatterNdMax",
    "ResourceScatterNdMin",
    "ResourceScatterNdSub",
    "ResourceScatterNdUpdate",
    "ResourceScatterSub",
    "ResourceScatterUpdate",
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

ASSIGNMENTS = ["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]

READS = ["VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"]


@rule("ReadVariableOp", always=True, partial=True)
def read(step: Step) -> Results:
    """Gives the value: whole, or a summand of it. Sends nothing."""
    (handle,) = step.inputs
    (copy,) = step.emit([handle])
    if handle.layout == REPLICATED:
        return step.results([copy], REPLICATED)
    if handle.layout == LOCAL:
        copy = step.write.divide(copy, step.program.num_replicas)
    return step.results([copy], PARTIAL)


@rule(*ASSIGNMENTS, always=True, partial=True)
def assign(step: Step) -> Results:
    """Writes the whole value, which is summed or gathered for it; of partial ones a summand."""
    handle, value = step.inputs
    if handle.layout == PARTIAL:
        if value.layout == PARTIAL:
            step.emit([handle, value])
        else:
            step.emit([handle, step.first_only(step.whole(value, "it is written to a variable"))])
        return []
    step.emit([handle, step.whole(value, "it is written to a variable")])
    return []


@rule(*WRITES, *READS, always=True, partial=True)
def write(step: Step) -> Results:
    """Gives every replica's copy the same: what is given is summed or gathered first."""
    handles = [tensor for tensor in step.inputs if tensor.dtype.name == "resource"]
    if step.op.type in WRITES and any(handle.layout != REPLICATED for handle in handles):
        raise ValueError(
            "it writes to a variable that each replica has a share of (ON_READ) in a way that "
            "is no assignment, addition or subtraction"
        )
    others = [tensor for tensor in step.inputs if tensor not in handles]
    step.require_sums(others)
    outputs = step.emit(
        [
            tensor.local if tensor in handles else step.whole(tensor, "it is written to a variable")
            for tensor in step.inputs
        ]
    )
    return step.results(outputs, REPLICATED)
