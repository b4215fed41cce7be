"""The rules by which operations put axes into groups: see `axis_groups`."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdp.partition.flattening import Task, Wire
from tfdp.partition.shape_inference.known_products import PRODUCTS, labels_of
from tfdp.partition.shape_inference.known_shapes import BROADCAST, UNARY
from tfdp.strategy.xla.axis_groups import AxisGroups, axes_from
from tfdp.strategy.xla.subgraphs import operation

Rule: TypeAlias = Callable[[AxisGroups, Task], None]

_RULES: dict[str, Rule] = {}


def walk(groups: AxisGroups) -> None:
    """Asks the rule of each operation of the forward pass; others need their inputs gathered."""
    for task in groups.tasks:
        groups.begin(task)
        _RULES.get(operation(task).type, _unknown)(groups, task)


def _rule(*types: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(types, rule))
        return rule

    return register


def _unknown(groups: AxisGroups, task: Task) -> None:
    for wire in task.inputs:
        for axis in range(len(groups.shape(wire))):
            groups.gather(task, wire, axis)


@_rule(
    *("BroadcastGradientArgs", "Const", "Empty", "Fill", "LinSpec", "OneHot", "Range", "Rank"),
    *("Shape", "ShapeN", "Size", "NoOp", "Assert", "PlaceholderWithDefault"),
    *("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg", "StatelessRandomGetAlg"),
    *("StatelessRandomNormal", "StatelessRandomNormalV2", "StatelessRandomUniform"),
    *("StatelessRandomUniformV2", "StatelessTruncatedNormalV2", "RngReadAndSkip"),
    *("RandomUniform", "RandomStandardNormal", "StatelessRandomUniformFullIntV2"),
    *("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "Bitcast"),
)
def _unrelated(groups: AxisGroups, task: Task) -> None:
    """Tells of no value by an axis, or writes a value, which then has the variable's layout."""


@_rule("ReadVariableOp")
def _read(groups: AxisGroups, task: Task) -> None:
    (handle,) = task.inputs
    groups.is_same_weight((task, 0), handle)
    if groups.weight_of(handle) is not None:
        groups.alike((task, 0), handle)


@_rule("Cast", "Identity", "StopGradient", "CheckNumerics", "EnsureShape", "PreventGradient")
def _view(groups: AxisGroups, task: Task) -> None:
    groups.is_same_weight((task, 0), task.inputs[0])
    groups.alike((task, 0), task.inputs[0])


@_rule(
    *(set(UNARY) | set(BROADCAST)),
    *("Add", "AddN", "AddV2", "ClipByValue", "Div", "DivNoNan", "Mul", "MulNoNan", "Neg"),
    *("RealDiv", "Select", "SelectV2", "Sub", "ZerosLike", "BroadcastTo", "MatrixBandPart"),
)
def _elementwise(groups: AxisGroups, task: Task) -> None:
    for wire in task.inputs:
        groups.alike((task, 0), wire)


@_rule("BiasAdd")
def _bias(groups: AxisGroups, task: Task) -> None:
    given, bias = task.inputs
    groups.alike((task, 0), given)
    channels = 1 if _is_channels_first(task) else len(groups.shape(given)) - 1
    groups.same((task, 0), channels, bias, 0)


@_rule(*PRODUCTS)
def _product(groups: AxisGroups, task: Task) -> None:
    ranks = [len(groups.shape(wire)) for wire in task.inputs]
    labels = labels_of(operation(task), ranks)
    if labels is None:
        _unknown(groups, task)
        return
    terms, result = labels
    weights = [groups.weight_of(wire) for wire in task.inputs]
    of_weights = [place for place, weight in enumerate(weights) if weight is not None]
    place = of_weights[0] if len(of_weights) == 1 else 0  # of the one weight, beside no weight
    weight = weights[place] if len(of_weights) == 1 and len(weights) == 2 else None
    for label in dict.fromkeys(label for term in terms for label in term):
        places = [
            (wire, term.index(label))
            for wire, term in zip(task.inputs, terms, strict=True)
            if label in term
        ]
        _join(groups, places)
        if label in result:
            _join(groups, [((task, 0), result.index(label)), *places])
        elif weight is not None:
            groups.sum(task, places[0], weight, "rows")
        else:
            for wire, axis in places:
                groups.refuse(task, wire, axis)
    if weight is not None:
        wire, operand = task.inputs[place], task.inputs[1 - place]
        for axis, label in enumerate(terms[place]):
            if label in result and label not in terms[1 - place]:
                groups.add_columns(task, (wire, axis), weight, operand)


def _join(groups: AxisGroups, places: Sequence[tuple[Wire, int]]) -> None:
    """Puts axes into one group, but for those that are broadcast."""
    long = [(wire, axis) for wire, axis in places if groups.shape(wire)[axis] > 1]
    for wire, axis in long[1:]:
        groups.same(*long[0], wire, axis)


@_rule("Conv1D", "Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv3DBackpropInputV2")
def _convolution(groups: AxisGroups, task: Task) -> None:
    is_transposed = "Backprop" in operation(task).type
    kernel, given = (task.inputs[1], task.inputs[2] if is_transposed else task.inputs[0])
    result = (task, 0)
    rank = len(groups.shape(given))
    channels = 1 if _is_channels_first(task) else rank - 1
    read, made = (rank - 1, rank - 2) if is_transposed else (rank - 2, rank - 1)
    groups.same(result, 0, given, 0)
    _windows(groups, task, given, channels)
    for axis in range(rank - 2):
        groups.gather(task, kernel, axis)
    in_groups = groups.shape(kernel)[read] != groups.shape(given)[channels]
    weight = groups.weight_of(kernel)
    if in_groups or weight is None:
        groups.gather(task, given, channels)
        for axis in (read, made):
            groups.gather(task, kernel, axis)
        return
    groups.same(given, channels, kernel, read)
    groups.same(result, channels, kernel, made)
    groups.sum(task, (kernel, read), weight, "rows")
    groups.add_columns(task, (kernel, made), weight, given)


@_rule("DepthwiseConv2dNative")
def _depthwise(groups: AxisGroups, task: Task) -> None:
    given, kernel = task.inputs
    channels = 1 if _is_channels_first(task) else 3
    groups.same((task, 0), 0, given, 0)
    _windows(groups, task, given, channels)
    for axis in (0, 1, 3):
        groups.gather(task, kernel, axis)
    groups.same(given, channels, kernel, 2)
    if groups.shape(given)[channels] % groups.size == 0:
        groups.same((task, 0), channels, given, channels)
    else:
        groups.gather(task, given, channels)


@_rule("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D", "ResizeBilinear", "ResizeNearestNeighbor")
def _pool(groups: AxisGroups, task: Task) -> None:
    given = task.inputs[0]
    channels = 1 if _is_channels_first(task) else len(groups.shape(given)) - 1
    for axis in (0, channels):
        groups.same((task, 0), axis, given, axis)
    _windows(groups, task, given, channels)


@_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(groups: AxisGroups, task: Task) -> None:
    given = task.inputs[0]
    groups.alike((task, 0), given)
    channels = 1 if _is_channels_first(task) else len(groups.shape(given)) - 1
    for wire in [*task.inputs[1:], *((task, index) for index in range(1, 5))]:
        groups.same(given, channels, wire, 0)


def _windows(groups: AxisGroups, task: Task, given: Wire, channels: int) -> None:
    """Needs what windows move over gathered; of data they make data."""
    for axis in range(1, len(groups.shape(given))):
        if axis != channels:
            groups.gather(task, given, axis, (task, 0))


@_rule("GatherV2", "ResourceGather")
def _gather(groups: AxisGroups, task: Task) -> None:
    op, (table, rows) = operation(task), task.inputs[:2]
    axis = 0 if op.type == "ResourceGather" else _constant(task.inputs[2])
    if axis is None or op.attr("batch_dims"):
        _unknown(groups, task)
        return
    axis, result = int(axis) % max(len(groups.shape(table)), 1), (task, 0)
    between = len(groups.shape(rows))
    for each in range(len(groups.shape(table))):
        if each != axis:
            groups.same(table, each, result, each if each < axis else each + between - 1)
    for each in range(between):
        groups.same(rows, each, result, axis + each)
    weight = groups.weight_of(table)
    if weight is None:
        groups.gather(task, table, axis)
    else:
        groups.sum(task, (table, axis), weight, "table")


@_rule("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum")
def _reduction(groups: AxisGroups, task: Task) -> None:
    given, result = task.inputs[0], (task, 0)
    shape, axes = groups.shape(given), _constant(task.inputs[1])
    if axes is None and groups.shape(result):
        _unknown(groups, task)
        return
    found = axes_from(shape, range(len(shape)) if axes is None else np.ravel(axes).tolist())
    keeps = len(groups.shape(result)) == len(shape)
    kept = 0
    for axis in range(len(shape)):
        if axis in found:
            groups.reduce(given, axis, groups.bytes(result))
        else:
            groups.same(given, axis, result, axis if keeps else kept)
            kept += 1


@_rule("LogSoftmax", "Softmax", "Cumsum", "Cumprod")
def _along(groups: AxisGroups, task: Task) -> None:
    """Keeps axes; reduces along the last, or runs along another."""
    given = task.inputs[0]
    groups.alike((task, 0), given)
    if len(task.inputs) == 1:
        last = len(groups.shape(given)) - 1
        groups.reduce(given, last, groups.bytes(given) // groups.shape(given)[last])
    elif (axis := _constant(task.inputs[1])) is not None:
        groups.gather(task, given, int(axis) % len(groups.shape(given)))
    else:
        _unknown(groups, task)


@_rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def _cross_entropy(groups: AxisGroups, task: Task) -> None:
    logits, labels = task.inputs
    groups.alike((task, 1), logits)
    groups.same((task, 0), 0, logits, 0)
    for axis in range(len(groups.shape(labels))):
        groups.same(labels, axis, logits, axis)
    groups.reduce(logits, 1, groups.bytes((task, 0)))


@_rule("Transpose")
def _transpose(groups: AxisGroups, task: Task) -> None:
    order = _constant(task.inputs[1])
    if order is None:
        _unknown(groups, task)
        return
    groups.is_same_weight((task, 0), task.inputs[0])
    for axis, source in enumerate(np.ravel(order).tolist()):
        groups.same((task, 0), axis, task.inputs[0], source)


@_rule("ExpandDims", "Reshape", "Squeeze")
def _reshape(groups: AxisGroups, task: Task) -> None:
    """Keeps axes of one entry more or less, and the first of those that are merged or split."""
    given, result = task.inputs[0], (task, 0)
    groups.is_same_weight(result, given)
    for olds, news in reshaped(groups.shape(given), groups.shape(result)):
        if len(olds) == len(news) == 1:
            groups.same(given, olds[0], result, news[0])
            continue
        sizes = groups.shape(given)[olds[0]], groups.shape(result)[news[0]]
        if groups.group(given, olds[0]).is_data:
            for axis in news:
                groups.group(result, axis).is_data = True
        elif any(size % groups.size for size in sizes):
            groups.gather(task, given, olds[0])
            groups.slice(task, result, news[0], given)
        else:
            groups.same(given, olds[0], result, news[0])
        for axis in olds[1:]:
            groups.gather(task, given, axis)
        for axis in news[1:]:
            groups.slice(task, result, axis, given)


def reshaped(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Returns which axes of a reshaped tensor become which, but for those of one entry.

    >>> reshaped([8, 4, 1, 6], [32, 2, 3])
    [([0, 1], [0]), ([3], [1, 2])]
    """
    olds = [axis for axis, size in enumerate(old) if size > 1]
    news = [axis for axis, size in enumerate(new) if size > 1]
    found: list[tuple[list[int], list[int]]] = []
    while olds and news:
        these, those = [olds.pop(0)], [news.pop(0)]
        before, after = old[these[0]], new[those[0]]
        while before != after:
            if before < after and olds:
                these.append(olds.pop(0))
                before *= old[these[-1]]
            elif before > after and news:
                those.append(news.pop(0))
                after *= new[those[-1]]
            else:
                return found
        found.append((these, those))
    return found


@_rule(
    "ConcatV2", "MirrorPad", "Pad", "PadV2", "Pack", "Slice", "Split", "SplitV", "Tile", "Unpack"
)
def _partly(groups: AxisGroups, task: Task) -> None:
    """Keeps axes that stay as long as they are; of others a device needs what another one has.

    It needs its shard of a part, if all are divided, and else the tensor gathered.
    """
    op = operation(task)
    results = [(task, index) for index in range(len(op.outputs))]
    added = int(op.attr("axis") or 0)  # of those that add or take away an axis
    of_values = {"ConcatV2": task.inputs[:-1], "Pack": task.inputs, "Split": task.inputs[1:]}
    for wire in of_values.get(op.type, task.inputs[:1]):
        for result in results:
            old, new = list(range(len(groups.shape(wire)))), list(range(len(groups.shape(result))))
            if op.type == "Pack":
                del new[added]
            elif op.type == "Unpack":
                groups.gather(task, wire, old.pop(added))
            for axis, place in zip(old, new, strict=True):
                _keep(groups, task, (wire, axis), (result, place))


def _keep(groups: AxisGroups, task: Task, old: tuple[Wire, int], new: tuple[Wire, int]) -> None:
    sizes = groups.shape(old[0])[old[1]], groups.shape(new[0])[new[1]]
    if sizes[0] == sizes[1]:
        groups.same(*old, *new)
        return
    are_divided = not any(size % groups.size for size in sizes)
    if are_divided and groups.weight_of(old[0]) is None and _is_of_parts(task):
        groups.move(*((old, new) if sizes[0] < sizes[1] else (new, old)))
        return
    groups.gather(task, *old)
    groups.slice(task, *new, old[0])
    if groups.group(*old).is_data:
        groups.group(*new).is_data = True


def _is_of_parts(task: Task) -> bool:
    """Returns whether an operation takes parts, or puts them beside each other, without a step."""
    if operation(task).type == "StridedSlice":
        steps = _constant(task.inputs[3])
        return steps is not None and bool(np.all(np.equal(steps, 1)))
    return operation(task).type in ("ConcatV2", "Slice", "Split", "SplitV")


@_rule("StridedSlice")
def _strided_slice(groups: AxisGroups, task: Task) -> None:
    given, result = task.inputs[0], (task, 0)
    begins, op = _constant(task.inputs[1]), operation(task)
    if begins is None:
        begins = [0] * (groups.shape(task.inputs[1]) or [0])[0]
    old = new = 0
    rank = len(groups.shape(given))
    is_new = [bool(op.attr("new_axis_mask") >> entry & 1) for entry in range(len(begins))]
    for entry in range(len(begins)):
        if op.attr("ellipsis_mask") >> entry & 1:
            rest = len(begins) - entry - 1 - sum(is_new[entry + 1 :])
            while old < rank - rest:
                _keep(groups, task, (given, old), (result, new))
                old, new = old + 1, new + 1
        elif is_new[entry]:
            new += 1
        elif op.attr("shrink_axis_mask") >> entry & 1:
            groups.gather(task, given, old)
            old += 1
        else:
            _keep(groups, task, (given, old), (result, new))
            old, new = old + 1, new + 1
    for axis in range(old, rank):
        _keep(groups, task, (given, axis), (result, new + axis - old))


def _is_channels_first(task: Task) -> bool:
    return (operation(task).attr("data_format") or b"N").startswith(b"NC")


def _constant(wire: Wire) -> Any:
    """Returns the value of a tensor that the trace knows; None: it does not."""
    task, index = wire
    if task.op is None:
        return None
    with contextlib.suppress(KeyError, ValueError):
        op = task.op.graph.original.get_operation_by_name(task.op.name)
        return tf.get_static_value(op.outputs[index])
    return None
