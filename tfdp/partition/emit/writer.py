"""Functions in the making: operations are written as messages, without TensorFlow's Python layer.

An operation costs a few microseconds this way, and hundreds as an operation of a graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.partition._tensorflow import AttrValue, FunctionDef, NodeDef, make_tensor_proto
from tfdp.partition.source import outputs_of

# The device of operations that run in the memory of a replica's host, see `registering.host_of`.
HOST = "CPU:0"

# Farther from an operation of the one-device program than any that is written.
_FAR = 1 << 30


@dataclasses.dataclass(frozen=True)
class Called:
    """A function that an operation calls, as an attribute: by its name."""

    name: str


def unique_name(prefix: str) -> str:
    """Returns a name that no other function of this process has."""
    return f"{prefix}_tfdp_{unique_number()}"


class Output:
    """A tensor of a function in the making: an argument, or what an operation gives.

    Attributes:
      writer: The function.
      name: What the function's other operations call it.
      dtype: The dtype of its elements.
    """

    __slots__ = ("dtype", "name", "writer")

    def __init__(self, writer: Writer, name: str, dtype: tf.DType) -> None:
        self.writer, self.name, self.dtype = writer, name, dtype

    @property
    def node(self) -> str:
        """The name of the operation that gives it."""
        return self.name.partition(":")[0]


class Writer:
    """One function in the making.

    What it uses of a function around it becomes a further argument, a *capture*.

    Args:
      name: The function's name, unique in the process.
      outer: The function that will call it, from within an operation; None: there is none.

    Attributes:
      name: The function's name.
      outer: The function around it.
      captures: The tensors of the function around it that it uses, with the arguments they become.
    """

    def __init__(self, name: str, outer: Writer | None = None) -> None:
        self.name, self.outer = name, outer
        self.captures: dict[Output, Output] = {}
        self.control: tuple[str, ...] = ()  # what each operation written now waits for
        self.written: list[str] = []  # the operations written so far that are no constants
        self._definition = FunctionDef()
        self._definition.signature.name = name
        self._definition.signature.is_stateful = True
        self._arguments: list[Output] = []
        self._used: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes, bool], Output] = {}
        self._is_on_host = False
        # Of what is no operation of the one-device program the nearest that it comes from, and the
        # distance: an argument comes from itself.
        self._sources: dict[str, tuple[int, str]] = {}

    @property
    def nodes(self) -> Sequence[NodeDef]:
        """The operations written so far."""
        return self._definition.node_def

    @property
    def arguments(self) -> Sequence[Output]:
        """The function's arguments, without the captures."""
        return self._arguments

    def argument(self, name: str, dtype: tf.DType) -> Output:
        self._arguments.append(self._argument(name, dtype))
        return self._arguments[-1]

    def _argument(self, name: str, dtype: tf.DType) -> Output:
        found = Output(self, self._unique(name), dtype)
        self._sources[found.name] = _FAR, found.name
        return found

    def use(self, output: Output) -> Output:
        """Returns a tensor of this function, or of one around it, as this function calls it."""
        if output.writer is self:
            return output
        if self.outer is None:
            raise ValueError(
                f"{output.name} is no tensor of {self.name} or of a function around it"
            )
        outside = self.outer.use(output)
        if outside not in self.captures:
            self.captures[outside] = self._argument("captured", output.dtype)
        return self.captures[outside]

    def copy(
        self, node: NodeDef, inputs: Sequence[Output], attrs: Mapping[str, Any] | None = None
    ) -> list[Output]:
        """Writes a message's operation again, with other inputs, and with other `attrs`."""
        new = self._definition.node_def.add()
        new.CopyFrom(node)
        new.ClearField("input")
        new.device = ""
        new.name = self._unique(node.name)
        return self._complete(new, inputs, attrs or {})

    def node(self, type_: str, inputs: Sequence[Output], **attrs: Any) -> list[Output]:
        """Writes an operation; its attributes must be complete, defaults included."""
        new = self._definition.node_def.add()
        new.op = type_
        new.name = self._unique(f"tfdp/{type_}")
        outputs = self._complete(new, inputs, attrs)
        sources = [self._source(each.partition(":")[0]) for each in new.input[: len(inputs)]]
        distance, source = min(sources, key=lambda each: each[0], default=(2 * _FAR, new.name))
        self._sources[new.name] = distance + 1, source
        return outputs

    def source_of(self, output: Output) -> str:
        """Returns the nearest operation of the one-device program that a tensor comes from.

        Where there is none it is an argument.
        """
        return self._source(output.node)[1]

    def _source(self, node: str) -> tuple[int, str]:
        return self._sources.get(node, (0, node))

    def _complete(
        self, new: NodeDef, inputs: Sequence[Output], attrs: Mapping[str, Any]
    ) -> list[Output]:
        for name, value in attrs.items():
            new.attr[name].CopyFrom(attr_value(value))
        if self._is_on_host:
            new.device = HOST
        new.input.extend([self.use(each).name for each in inputs])
        new.input.extend(self.control)
        self.written.append(new.name)
        return [
            Output(self, f"{new.name}:{name}:{index}", dtype)
            for name, index, dtype in outputs_of(new)
        ]

    @contextlib.contextmanager
    def on_host(self) -> Iterator[None]:
        """Returns a context in which operations are written that run in the host's memory."""
        before, self._is_on_host = self._is_on_host, True
        try:
            yield
        finally:
            self._is_on_host = before

    def call_compiled(self, function: FunctionDef, inputs: Sequence[Output]) -> list[Output]:
        """Writes a call of a function that XLA compiles; the program must hold the function."""
        return self.node("PartitionedCall", inputs, **attrs_of_compiled(function))

    def constant(self, value: Any, dtype: tf.DType) -> Output:
        """Returns a constant; equal ones are written once."""
        array = np.asarray(value, dtype.as_numpy_dtype)
        raw = array.tobytes() if dtype != tf.string else repr(array.tolist()).encode()
        key = (dtype.name, array.shape, raw, self._is_on_host)
        if key not in self._constants:
            control, self.control = self.control, ()
            tensor = AttrValue(tensor=make_tensor_proto(array, dtype))
            (self._constants[key],) = self.node("Const", [], dtype=dtype, value=tensor)
            self.written.pop()
            self.control = control
        return self._constants[key]

    def finish(
        self,
        outputs: Sequence[Output],
        control_outputs: Iterable[str] = (),
        captures: Sequence[Output] | None = None,
    ) -> FunctionDef:
        """Returns the function.

        Args:
          outputs: What it returns.
          control_outputs: The operations that a call waits for besides.
          captures: The tensors that it captures, in the order of its arguments; None: in the order
            in which it came to use them.
        """
        used = [self.use(output) for output in outputs]
        if captures is not None:
            for outside in captures:
                self.use(outside)
        order = list(self.captures) if captures is None else captures
        signature = self._definition.signature
        for argument in [*self._arguments, *(self.captures[outside] for outside in order)]:
            signature.input_arg.add(name=argument.name, type=argument.dtype.as_datatype_enum)
        for index, output in enumerate(used):
            name = f"output_{index}"
            signature.output_arg.add(name=name, type=output.dtype.as_datatype_enum)
            self._definition.ret[name] = output.name
        for name in sorted(set(control_outputs)):
            signature.control_output.append(name)
            self._definition.control_ret[name] = name
        return self._definition

    def _unique(self, name: str) -> str:
        if not (name[0].isalnum() or name[0] == "."):
            name = f"n{name}"
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return self._unique(f"{name}_{count}") if count else name


def attrs_of_compiled(function: FunctionDef) -> dict[str, Any]:
    """Marks a function as one that XLA compiles; returns the attributes of a call of it."""
    function.attr["_XlaMustCompile"].b = True
    return {
        "Tin": [tf.as_dtype(arg.type) for arg in function.signature.input_arg],
        "Tout": [tf.as_dtype(arg.type) for arg in function.signature.output_arg],
        "f": Called(function.signature.name),
        "config": "",
        "config_proto": "",
        "executor_type": "",
        "_XlaMustCompile": True,
    }


def called(node: NodeDef) -> Iterator[str]:
    """Yields the names of the functions that an operation calls."""
    for attr in node.attr.values():
        if attr.WhichOneof("value") == "func":
            yield attr.func.name
        for each in attr.list.func:
            yield each.name


def attr_value(value: Any) -> AttrValue:
    """Returns the message of an attribute's value.

    >>> attr_value(tf.float32).type, attr_value([1, 2]).list.i[:], attr_value(True).b
    (1, [1, 2], True)
    """
    if isinstance(value, AttrValue):
        return value
    if isinstance(value, bool):
        return AttrValue(b=value)
    if isinstance(value, tf.DType):
        return AttrValue(type=value.as_datatype_enum)
    if isinstance(value, int):
        return AttrValue(i=value)
    if isinstance(value, float):
        return AttrValue(f=value)
    if isinstance(value, str):
        return AttrValue(s=value.encode())
    if isinstance(value, bytes):
        return AttrValue(s=value)
    if isinstance(value, Called):
        found = AttrValue()
        found.func.name = value.name
        return found
    if isinstance(value, tf.TensorShape):
        return AttrValue(shape=value.as_proto())
    found = AttrValue()
    found.list.SetInParent()
    for each in value:
        single = attr_value(each)
        kind = single.WhichOneof("value")
        if kind in ("shape", "func"):
            getattr(found.list, kind).add().CopyFrom(getattr(single, kind))
        else:
            getattr(found.list, kind).append(getattr(single, kind))
    return found
