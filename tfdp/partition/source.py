"""The one-device program as the walk reads it: light objects in place of TensorFlow's graph."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.partition._tensorflow import (
    FuncGraph,
    NodeDef,
    function_def_to_graph,
    function_named,
    op_def_registry,
)

# Operations in files of these packages are theirs; the next frame outward may be the user's.
_TENSORFLOW = pathlib.Path(tf.__file__).parent
_PACKAGES = _TENSORFLOW, _TENSORFLOW.parent / "keras", pathlib.Path(__file__).parents[1]
_LAYER = os.path.join("keras", "src", "layers", "layer.py")
_TRAINER = os.path.join("keras", "src", "backend", "tensorflow", "trainer.py")
_LIBRARIES = (*(f"{folder}{os.sep}" for folder in _PACKAGES), contextlib.__file__)


class SourceTensor:
    """An output of an operation of the source."""

    __slots__ = ("dtype", "index", "op", "shape")

    def __init__(self, op: SourceOp, index: int, dtype: tf.DType, shape: tf.TensorShape) -> None:
        self.op, self.index, self.dtype, self.shape = op, index, dtype, shape


class SourceOp:
    """An operation of the source.

    Attributes:
      name: Its name in its graph.
      type: The type of the operation.
      node: Its message, without the attributes that begin with an underscore, which are
        TensorFlow's own notes.
      graph: The graph that holds it.
      number: Its place in the order in which the operations were traced.
      inputs: The tensors that it is given.
      control_inputs: The operations that it waits for.
      outputs: The tensors that it gives.
      is_compiled: Whether it calls a function that XLA compiles.
    """

    __slots__ = (
        "control_inputs",
        "graph",
        "inputs",
        "is_compiled",
        "name",
        "node",
        "number",
        "outputs",
        "type",
    )

    def __init__(self, node: NodeDef, graph: SourceGraph, number: int) -> None:
        self.name, self.type, self.node = node.name, node.op, node
        self.graph, self.number = graph, number
        self.inputs: list[SourceTensor] = []
        self.control_inputs: list[SourceOp] = []
        self.is_compiled = _COMPILED in node.attr and node.attr[_COMPILED].b
        shapes = map(tf.TensorShape, node.attr["_output_shapes"].list.shape)
        for key in [key for key in node.attr if key.startswith("_") and key not in _KEPT]:
            del node.attr[key]
        dtypes = [dtype for _, _, dtype in outputs_of(node)]
        self.outputs = [
            SourceTensor(self, index, dtype, shape)
            for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
        ]

    def attr(self, name: str) -> Any:
        """Returns an attribute's value: a number, text as bytes, a list, or a `tf.DType`.

        None: the operation has no such attribute.
        """
        if name not in self.node.attr:  # to ask a message for it would add it
            return None
        value = self.node.attr[name]
        kind = value.WhichOneof("value")
        if kind is None:
            return None
        if kind == "list":
            fields = value.list.ListFields()
            return list(fields[0][1]) if fields else []
        if kind == "type":
            return tf.as_dtype(value.type)
        if kind == "shape":
            return tf.TensorShape(value.shape)
        if kind == "func":
            return value.func.name
        return getattr(value, kind)

    @property
    def is_stateful(self) -> bool:
        """Whether the operation reads or writes something besides its inputs."""
        return definition(self.type).is_stateful

    def function(self, attr: str) -> SourceGraph:
        """Returns the function that an attribute names."""
        found = self.graph.function(self.attr(attr))
        found.is_compiled |= self.is_compiled
        return found

    def line(self) -> str:
        """Returns the user's line that made the operation: "train.py:12, in step"."""
        try:
            return _line(self.graph.original.get_operation_by_name(self.name))
        except (KeyError, ValueError):
            return "an unknown line"

    def place(self) -> str:
        """Returns where the operation is in the user's terms: a layer, and the line of its code.

        A line that only runs the model, such as that of `fit`, is left out.
        """
        try:
            return _place(self.graph.original.get_operation_by_name(self.name))
        except (KeyError, ValueError):
            return "an unknown line"


def lines_named(graph: FuncGraph, text: str) -> list[str]:
    """Returns of each operation of a graph that an error's text names its type and user's line.

    >>> graph = tf.function(lambda x: tf.gather(x, 5)).get_concrete_function(tf.ones([3])).graph
    >>> lines_named(graph, "index 5 is too large [[{{node GatherV2}}]]")
    ['GatherV2 at ...']
    """
    found = []
    for name in dict.fromkeys(re.findall(r"\{\{node ([^\s}]+)\}\}", text)):
        for place in (graph, *_functions(graph)):
            with contextlib.suppress(KeyError, ValueError):
                op = place.get_operation_by_name(name)
                found.append(f"{op.type} at {_line(op)}")
                break
    return found


def _functions(graph: FuncGraph) -> Iterator[FuncGraph]:
    """Yields the functions that a graph's operations call, such as a loop's body."""
    for op in graph.get_operations():
        for value in op.node_def.attr.values():
            definition = function_named(graph, value.func.name) if value.HasField("func") else None
            inner = getattr(definition, "graph", None)
            if inner is not None:
                yield inner
                yield from _functions(inner)


def _line(op: tf.Operation) -> str:
    own = [frame for frame in op.traceback or () if not frame.filename.startswith(_LIBRARIES)]
    if not own:
        return "a line of the library"
    frame: traceback.FrameSummary = own[-1]
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}, in {frame.name}"


def _place(op: tf.Operation) -> str:
    frames = list(op.traceback or ())
    layers = [at for at, each in enumerate(frames) if each.filename.endswith(_LAYER)]
    calls = [at for at in layers if frames[at].name == "__call__"]
    own = [at for at, each in enumerate(frames) if not each.filename.startswith(_LIBRARIES)]
    scopes = op.name.removeprefix("gradient_tape/").split("/")[:-1]
    scope = "/".join(scopes[: len(calls) or 2])
    runs = [at for at, each in enumerate(frames) if each.filename.endswith(_TRAINER)]
    if not scope or (own and own[-1] > (calls or runs or [-1])[-1]):
        line = _line(op)
        return f"{line}, of `{scope}`" if scope and calls else line
    return f"`{scope}`"


class SourceGraph:
    """A traced function.

    Args:
      graph: The function's graph.
      outer: The graph that holds it; None for the program itself.

    Attributes:
      original: The function's graph.
      ops: The operations, in the order of the trace, but each after what it waits for.
      inputs: The function's arguments, captured tensors last.
      outputs: What it returns.
      control_outputs: The operations that a call waits for besides.
      is_compiled: Whether XLA compiles it on one device.
    """

    def __init__(self, graph: FuncGraph, outer: SourceGraph | None = None) -> None:
        self.original, self._outer = graph, outer
        self.is_compiled: bool = outer is not None and outer.is_compiled
        self._functions: dict[str, SourceGraph] = {}
        nodes = graph.as_graph_def(add_shapes=True).node
        for node in nodes:
            if definition(node.op) is None:
                self._as_call(node)
        self.ops = [SourceOp(node, self, number) for number, node in enumerate(nodes)]
        self._by_name = {op.name: op for op in self.ops}
        for op in self.ops:
            for name in op.node.input:
                if name.startswith("^"):
                    op.control_inputs.append(self._by_name[name[1:]])
                else:
                    source, _, index = name.partition(":")
                    op.inputs.append(self._by_name[source].outputs[int(index or 0)])
        self.ops = _in_order(self.ops)
        self.inputs = [self._tensor(tensor) for tensor in graph.inputs]
        self.outputs = [self._tensor(tensor) for tensor in graph.outputs]
        self.control_outputs = [self._by_name[op.name] for op in graph.control_outputs]

    def _as_call(self, node: NodeDef) -> None:
        """Makes a call of an operation whose type is a function, as `Defun`s have it."""
        signature = self.definition(node.op).definition.signature
        node.attr["f"].func.name = node.op
        node.attr["Tin"].list.type.extend(arg.type for arg in signature.input_arg)
        node.attr["Tout"].list.type.extend(arg.type for arg in signature.output_arg)
        node.op = "PartitionedCall"

    def _tensor(self, tensor: tf.Tensor) -> SourceTensor:
        return self._by_name[tensor.op.name].outputs[tensor.value_index]

    def function(self, name: str) -> SourceGraph:
        """Returns a function that an operation of the graph calls by name."""
        if name not in self._functions:
            found = self.definition(name)
            if hasattr(found, "graph"):
                graph = found.graph
            else:  # made by `Defun`, as those of the loops of `tf.nn.ctc_loss`
                with self.original.as_default():
                    graph = function_def_to_graph(found.definition)
            self._functions[name] = SourceGraph(graph, self)
        return self._functions[name]

    def definition(self, name: str) -> Any:
        graph: SourceGraph | None = self
        while graph is not None:
            found = function_named(graph.original, name)
            if found is not None:
                return found
            graph = graph._outer
        raise KeyError(name)


def _in_order(ops: Sequence[SourceOp]) -> list[SourceOp]:
    """Returns operations with each after what it waits for, which may have been traced later."""
    done: dict[SourceOp, None] = {}
    for op in ops:
        open_ = [op]
        while open_:
            last = open_[-1]
            waits = [tensor.op for tensor in last.inputs] + last.control_inputs
            missing = [each for each in waits if each not in done]
            if last in done or not missing:
                done.setdefault(open_.pop())
            else:
                open_ += missing
    return list(done)


# TensorFlow's notes on an operation are left out, but for the one by which a branch or a loop
# becomes operations of the graph that holds it.
_KEPT = ("_lower_using_switch_merge",)

# By this one a call is compiled.
_COMPILED = "_XlaMustCompile"


def definition(type_: str) -> Any:
    """Returns how a type of operations is declared; None: it is the name of a function."""
    return op_def_registry.get(type_)


def outputs_of(node: NodeDef) -> Sequence[tuple[str, int, tf.DType]]:
    """Returns of each output of an operation its declared name, its place in that, its dtype."""
    found: list[tuple[str, int, tf.DType]] = []
    for arg in definition(node.op).output_arg:
        if arg.type_list_attr:
            dtypes = node.attr[arg.type_list_attr].list.type
            found += [(arg.name, index, tf.as_dtype(dtype)) for index, dtype in enumerate(dtypes)]
            continue
        dtype = tf.as_dtype(arg.type or node.attr[arg.type_attr].type)
        count = node.attr[arg.number_attr].i if arg.number_attr else 1
        found += [(arg.name, index, dtype) for index in range(count)]
    return found
