"""Operations that compute each element of their result from one element of each operand."""

import functools
import math
from collections.abc import Sequence

from tfdp.partition.layouts import PARTIAL, REPLICATED, Listed, Sharded, join
from tfdp.partition.rules.operand_layouts import dominant, on_aligned
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.shape_inference.known_shapes import BROADCAST, UNARY
from tfdp.partition.tensors import Tensor

# What costs less to pass on as a partial, whole on one replica, than to wait for a sum.
_FEW = 1024


@rule(
    "Identity",
    "StopGradient",
    "Snapshot",
    "EnsureShape",
    "PlaceholderWithDefault",
    always=True,
    partial=True,
)
def identity(step: Step) -> Results:
    """Keeps every layout. Sends nothing.

    A shape that is asserted is that of the global tensor, which the trace has compared as far as it
    is known; the operation is written without the assertion where the layout has another shape.
    """
    tensor = step.inputs[0]
    if step.op.type == "EnsureShape" and tensor.layout != REPLICATED:
        outputs = [step.write.identity(tensor.local)]
    else:
        outputs = step.emit(step.inputs)
    results = step.results(outputs, tensor.layout, entries=[tensor.entries])
    if tensor.layout == PARTIAL and tensor.replicated is not None:
        results[0].replicated = tensor.replicated
    return results


@rule("IdentityN", always=True, partial=True, apart=True)
def identities(step: Step) -> Results:
    """Keeps every layout. Sends nothing."""
    layouts = [tensor.layout for tensor in step.inputs]
    entries = [tensor.entries for tensor in step.inputs]
    results = step.results(step.emit(step.inputs), layouts, entries=entries)
    for tensor, result in zip(step.inputs, results, strict=True):
        result.variables = tensor.variables
    return results


@rule(*UNARY, *BROADCAST)
def elementwise(step: Step) -> Results:
    """Keeps the largest operand's shard; a part of the others is taken. Sends nothing.

    An operand with another shard is gathered. One whose size along the axis is not known to be 1 or
    the batch's makes the operation whole.
    """
    if step.op.attr("incompatible_shape_error") is False and step.shapes()[0] is None:
        return None  # `x == y` is one truth value where shapes do not fit
    return aligned(step)


@rule("ZerosLike", always=True)
def zeros_like(step: Step) -> Results:
    """Keeps the shard; zeros like a tensor list are a list of the same layout. Sends nothing."""
    (tensor,) = step.inputs
    if isinstance(tensor.layout, Listed):
        return step.results(step.emit([tensor]), tensor.layout)
    if tensor.layout == REPLICATED:
        return None
    return aligned(step)


@rule("Neg", "Cast", "Real", "Imag", "Conj", partial=True)
def linear(step: Step) -> Results:
    """Keeps the shard, and a partial, unless a cast rounds to whole numbers. Sends nothing."""
    (tensor,) = step.inputs
    if tensor.layout == PARTIAL:
        dtype = step.op.outputs[0].dtype
        if step.op.type == "Cast" and not (tensor.dtype.is_floating and dtype.is_floating):
            step.require_sums([tensor])
            return None
        return step.results(step.emit([tensor]), PARTIAL)
    return aligned(step)


@rule("Add", "AddV2", "Sub", "AddN", partial=True)
def additive(step: Step) -> Results:
    """Keeps the largest operand's shard; sums of partials are partials. Sends nothing.

    Beside a part of a variable of the same shape the part of a partial's sum is taken. Beside a
    replicated operand a partial is summed first, which is sent once in any case. In a branch or
    a loop, beside several partials, or beside what a variable has in shares, such as a metric's, a
    small replicated operand becomes a partial: itself on the first replica, zeros on the others;
    and so does a loop's variable, and each where partials are wanted. Tensor lists are added
    element by element.
    """
    layouts = [tensor.layout for tensor in step.inputs]
    if any(isinstance(layout, Listed) for layout in layouts):
        joined = functools.reduce(join, layouts)
        lists = [step.to(each, joined, "a list is added to one of others") for each in step.inputs]
        return step.results(step.emit(lists), joined)
    if PARTIAL not in layouts:
        return aligned(step)
    sharding = _shard_of_weight(step)
    if sharding is not None:
        why = "a part of a variable is added"
        step.inputs = [
            Tensor(step.scattered(tensor, sharding, why), sharding, tensor.shape)
            if tensor.layout == PARTIAL
            else tensor
            for tensor in step.inputs
        ]
        return aligned(step)
    whole = [tensor for tensor in step.inputs if tensor.layout != PARTIAL]
    small = all(tensor.layout == REPLICATED for tensor in whole) and can_join_partials(whole)
    several = len(step.inputs) - len(whole) > 1 or step.writer.outer is not None
    several |= any(
        tensor.layout == PARTIAL and source.op.type == "ReadVariableOp"
        for tensor, source in zip(step.inputs, step.op.inputs, strict=True)
    )
    apart = step.program.communicator.keeps_partials and step.inputs[0].dtype.is_floating
    if (((several or not whole) and small) or apart) and not grows(step):
        operands = [
            tensor if tensor.layout == PARTIAL else step.first_only(step.replicated(tensor))
            for tensor in step.inputs
        ]
        return step.results(step.emit(operands), PARTIAL)
    return None


def _shard_of_weight(step: Step) -> Sharded | None:
    """Returns the shard of a variable's part that is added to partials of the same shape."""
    shapes = {str(tensor.shape) for tensor in step.inputs}
    layouts = {tensor.sharded for tensor in step.inputs if tensor.sharded is not None}
    (layout,) = layouts if len(layouts) == 1 else (None,)
    return layout if layout is not None and layout.is_fixed and len(shapes) == 1 else None


@rule("Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", partial=True)
def product(step: Step) -> Results:
    """Keeps the largest operand's shard; a partial times a replicated tensor is a partial.

    Sends nothing.

    So is a partial divided by one, if the result has no more elements.
    """
    a, b = step.inputs
    linear_in = [(PARTIAL, REPLICATED)] + [(REPLICATED, PARTIAL)] * (step.op.type == "Mul")
    if (a.layout, b.layout) in linear_in and not grows(step) and not a.dtype.is_integer:
        return step.results(step.emit([a, b]), PARTIAL)
    if PARTIAL in (a.layout, b.layout):
        return None
    return aligned(step)


@rule("SelectV2", partial=True)
def select(step: Step) -> Results:
    """Keeps the largest operand's shard, and partials that a replicated condition chooses."""
    condition, *values = step.inputs
    step.require_sums([condition])
    layouts = [tensor.layout for tensor in values]
    if PARTIAL in layouts and condition.layout in (REPLICATED, PARTIAL) and not grows(step):
        if can_join_partials([tensor for tensor in values if tensor.layout != PARTIAL]):
            chosen = [
                tensor.local
                if tensor.layout == PARTIAL
                else step.first_only(step.replicated(tensor))
                for tensor in values
            ]
            return step.results(step.emit([step.replicated(condition), *chosen]), PARTIAL)
        return None
    return None if PARTIAL in layouts or condition.layout == PARTIAL else aligned(step)


@rule("Select")
def select_rows(step: Step) -> Results:
    """Keeps the shard; a vector as condition chooses whole rows. Sends nothing."""
    condition, a, b = step.inputs
    if condition.rank is None or a.rank is None:
        return None
    if condition.rank == a.rank:
        return aligned(step)
    spot = dominant([condition, a, b] if condition.rank else [a, b], aligned_right=False)
    if spot is None or (condition.rank and spot.axis != 0):
        return None
    chooser = step.part(condition, spot) if condition.rank else condition.local
    return step.results(step.emit([chooser, step.part(a, spot), step.part(b, spot)]), spot)


def aligned(step: Step) -> Results:
    """Writes the operation on the parts of a batch that its operands hold, broadcast together."""
    found = on_aligned(step)
    if found is None or len(step.op.outputs) != 1:
        return None
    shard, operands = found
    return step.results(step.emit(operands), shard)


def grows(step: Step) -> bool:
    """Returns whether the result may have more elements than one of the partials."""
    result = step.op.outputs[0].shape.num_elements()
    sizes = [_elements(tensor) for tensor in step.inputs if tensor.layout == PARTIAL]
    if result is None:
        return any(tensor.shape != step.inputs[0].shape for tensor in step.inputs)
    return any(size is None or result > size for size in sizes)


def can_join_partials(tensors: Sequence[Tensor]) -> bool:
    """Returns whether replicated tensors beside partials become partials, and none is summed.

    They are few entries, or a loop's variables: what a loop adds up is summed after it.
    """
    sizes = [_elements(tensor) for tensor in tensors if not tensor.variables]
    return None not in sizes and sum(size for size in sizes if size is not None) <= _FEW


def _elements(tensor: Tensor) -> int | None:
    if tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
        return None
    return math.prod(size for size in tensor.shape if isinstance(size, int))
