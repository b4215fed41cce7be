"""Side effects that need no argument: they also happen in the step that finds no data.

On one device Keras takes the batch in the graph of its step. Where data end whose length is not
known, the step fails; by then TensorFlow has run what waits for no batch: steps are counted, and
numbers drawn. Calls and branches are part of the graph that holds them when it runs, so of each it
has run what waits for no batch as well. A call that XLA compiles begins when it has all its inputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from tfdp.partition.source import SourceGraph

# What has a resource and is stateful, and writes nothing.
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}

# The attributes by which operations name the functions that they run, of all their inputs, or of
# all but the first one, which says which.
_CALLS = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
}


def function_of(source: tf.types.experimental.ConcreteFunction) -> Callable[[], None] | None:
    """Returns a function that writes what a traced program writes before it needs an argument.

    Args:
      source: The traced program.

    Returns:
      A function to be traced; None: everything that the program writes needs an argument.
    """
    graph = source.graph
    captured = dict(
        zip([each.name for each in graph.internal_captures], graph.external_captures, strict=True)
    )
    arguments = {each.name for each in graph.inputs} - captured.keys()
    writes = _writes_of(SourceGraph(graph), arguments)
    if writes is None:
        return None

    @tf.autograph.experimental.do_not_convert
    def write() -> None:
        _add(writes, captured)

    return write


@dataclasses.dataclass(frozen=True)
class _Writes:
    """What a graph writes without some of its inputs.

    Attributes:
      graph: The graph.
      names: The names of the operations that write.
      calls: Operations that call functions, and of each function what it writes.
      needed: The names of the tensors that these are given.
    """

    graph: tf.Graph
    names: list[str]
    calls: list[tuple[tf.Operation, list[_Writes | None]]]
    needed: list[str]


def _writes_of(source: SourceGraph, missing: set[str]) -> _Writes | None:
    """Returns what a graph writes without the inputs of these names; None: nothing."""
    graph = source.original
    waiting = {name.partition(":")[0] for name in missing}
    found = _Writes(graph, [], [], [])
    for operation in graph.get_operations():  # each after those that it needs
        waits = any(each.name in waiting for each in operation.control_inputs)
        given = [tensor for tensor in operation.inputs if tensor.op.name not in waiting]
        is_whole = waits or _is_compiled(operation) or len(given) == len(operation.inputs)
        if operation.type in _CALLS and not is_whole:
            functions = [
                source.function(operation.get_attr(name).name) for name in _CALLS[operation.type]
            ]
            own = operation.inputs[len(functions) - 1 :]
            known = len(functions) == 1 or operation.inputs[0].op.name not in waiting
            inner = [_writes_of(each, _missing(each, own, waiting)) for each in functions]
            if known and any(inner):
                found.calls.append((operation, inner))
                found.needed.extend(tensor.name for tensor in given)
        if waits or len(given) < len(operation.inputs) or operation.name in waiting:
            waiting.add(operation.name)
        elif _writes(operation):
            found.names.append(operation.name)
    return found if found.names or found.calls else None


def _missing(function: SourceGraph, given: list[tf.Tensor], waiting: set[str]) -> set[str]:
    pairs = zip(function.original.inputs, given, strict=True)
    return {own.name for own, outer in pairs if outer.op.name in waiting}


def _writes(operation: tf.Operation) -> bool:
    has_resource = any(each.dtype == tf.resource for each in operation.inputs)
    return has_resource and operation.op_def.is_stateful and operation.type not in _READS


def _is_compiled(operation: tf.Operation) -> bool:
    attributes = operation.node_def.attr
    return "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b


def _add(writes: _Writes, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Adds to the graph that is being built what another graph writes, given some of its inputs."""
    needed = [name for name in dict.fromkeys(writes.needed) if name not in given]
    ends = [*writes.names, *(name.partition(":")[0] for name in needed)]
    definition = _part(writes.graph, ends)
    nodes = {node.name for node in definition.node}
    capture = tf.compat.v1.get_default_graph().capture
    inputs = {name: capture(own) for name, own in given.items() if name.partition(":")[0] in nodes}
    found = tf.graph_util.import_graph_def(definition, inputs, needed, name="")
    tensors = {**given, **dict(zip(needed, found or [], strict=True))}
    for operation, functions in writes.calls:
        own = operation.inputs[len(functions) - 1 :]
        adding = [functools.partial(_added, each, own, tensors) for each in functions]
        if len(adding) == 1:
            adding[0]()
        else:
            tf.cond(tensors[operation.inputs[0].name], *adding)
    return tf.constant(True)


def _part(graph: tf.Graph, names: Iterable[str]) -> tf.compat.v1.GraphDef:
    """Returns operations of a graph and all that they need, on no device of their own."""
    kept: set[str] = set()
    open_ = [graph.get_operation_by_name(name) for name in names]
    while open_:
        operation = open_.pop()
        if operation.name not in kept:
            kept.add(operation.name)
            open_ += [each.op for each in operation.inputs] + operation.control_inputs
    definition = graph.as_graph_def()
    nodes = [node for node in definition.node if node.name in kept]
    for node in nodes:
        node.ClearField("device")
        node.attr.pop("_class", None)
    part = tf.compat.v1.GraphDef(versions=definition.versions, library=definition.library)
    part.node.extend(nodes)
    return part


def _added(
    writes: _Writes | None, given: list[tf.Tensor], tensors: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    if writes is None:
        return tf.constant(True)
    pairs = zip(writes.graph.inputs, given, strict=True)
    return _add(
        writes, {own.name: tensors[each.name] for own, each in pairs if each.name in tensors}
    )
