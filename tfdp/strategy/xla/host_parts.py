"""The part of a program that the host computes, batch by batch, before the devices' part.

XLA has no strings and no lookup tables, and compiles for sizes that it knows. What a model's first
layers do with them, such as `TextVectorization`, `StringLookup` and `Hashing`, depends on nothing
but a batch. So a traced program is split in two:

1. An operation that XLA has not, or of sizes that tracing does not know, is the host's, if all that
   it depends on are arguments, constants and tables that are not written. So is a check of them.
2. What such an operation depends on is computed there as well.
3. What is left is the devices' program. Its arguments are those of the whole one that it uses, and
   what it uses of the host's part. Where a batch decides a size, it is compiled for each.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.partition.flattening import CALLS, Flattened, Task, Wire
from tfdp.partition.source import SourceGraph, SourceOp
from tfdp.strategy.xla import refusals
from tfdp.strategy.xla.device_variables import DeviceVariable, variable_of
from tfdp.strategy.xla.subgraphs import Piece, operation

# What XLA has no values of.
_OF_HOST = (tf.string, tf.resource, tf.variant)

# Operations that TensorFlow takes for stateful, and which only read a table, or check values.
_READS = ("LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2")
_PURE = (*_READS, "Assert")

# These are as pure as the functions that they call.
_CONTROL_FLOW = (
    *("Case", "If", "While", "StatelessCase", "StatelessIf", "StatelessWhile"),
    *CALLS,
)

# Operations that tell sizes, which XLA must know.
_SIZES = ("Rank", "Shape", "ShapeN", "Size")


class Given(NamedTuple):
    """What the devices are given.

    Attributes:
      tensors: Their arguments.
      sizes: What they must know before: sizes of what the host has computed, as nested tuples.
    """

    tensors: Sequence[tf.Tensor]
    sizes: tuple[Any, ...] = ()

    @property
    def specs(self) -> tuple[tf.TensorSpec, ...]:
        """The specifications of the arguments."""
        return tuple(tf.TensorSpec(each.shape, each.dtype) for each in self.tensors)


@dataclasses.dataclass(frozen=True)
class HostPart:
    """What the host computes of a program's arguments.

    Attributes:
      function: The function of all arguments. It returns arguments of the devices, and then sizes.
      num_sizes: How many of them are sizes.
      kept: The places of the arguments that the devices' part takes as they are.
      places: The layers, or the user's lines, that are computed there.
    """

    function: Callable[..., Any]
    num_sizes: int
    kept: tuple[int, ...]
    places: tuple[str, ...]

    def __call__(self, arguments: Sequence[tf.Tensor]) -> Given:
        """Returns what the devices are given; any thread may call it.

        Args:
          arguments: Those of the whole program.
        """
        with tf.device("CPU:0"):
            found = self.function(*arguments)
        count = len(found) - self.num_sizes
        tensors = [*(arguments[index] for index in self.kept), *found[:count]]
        return Given(tensors, tuple(_nested(each.numpy().tolist()) for each in found[count:]))


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def split(
    source: tf.types.experimental.ConcreteFunction, specs: Sequence[tf.TensorSpec]
) -> tuple[HostPart, Callable[..., Any]] | None:
    """Splits a traced program into what the host computes and what the devices do.

    Args:
      source: The program.
      specs: Its arguments, of known sizes. What it captures follows them.

    Returns:
      The host's part, and the devices' as a function of sizes, and of tensors. None: XLA has all.

    Raises:
      PartitionError: It has strings that depend on more. Names the operation and the user's line.
    """
    has_strings = any(spec.dtype == tf.string for spec in specs)
    if not (has_strings or refusals.may_need_host(source.graph)):
        return None
    parting = _Parting(source, specs)
    return parting.parts() if parting.host or has_strings else None


class _Parting:
    """The operations of a program, each the host's or the devices'.

    Args:
      source: The program.
      specs: Its arguments.

    Attributes:
      host: The operations of the host, but for those that they need.
    """

    def __init__(
        self, source: tf.types.experimental.ConcreteFunction, specs: Sequence[tf.TensorSpec]
    ) -> None:
        self._graph, self._captured = source.graph, source.captured_inputs
        self._specs, self._flat = specs, Flattened(SourceGraph(source.graph))
        # To ask one of the devices' for its handle would bring its value home.
        others = [each for each in source.graph.variables if not isinstance(each, DeviceVariable)]
        variables = {id(variable.handle) for variable in others}
        written = _written(self._flat)
        self._given: dict[Wire, tf.TensorSpec] = {
            (self._flat.arguments, index): spec for index, spec in enumerate(specs)
        }
        for index, tensor in enumerate(self._captured, len(specs)):
            is_variable = id(tensor) in variables or variable_of(tensor) is not None
            if not is_variable and index not in written:
                wire = self._flat.arguments, index
                self._given[wire] = tf.TensorSpec(tensor.shape, tensor.dtype)
        # What is to be had before a step: of arguments, constants and tables.
        self._ahead: set[Task] = set()
        for task in self._flat.tasks:
            if _is_pure(operation(task)) and all(map(self._is_ahead, task.inputs)):
                self._ahead.add(task)
        sizes = self._sizes_of_tables()
        rest = [task for task in self._flat.tasks if task in self._ahead and (task, 0) not in sizes]
        self._known = Piece(self._graph, rest).known(self._given, sizes)
        self.host: set[Task] = set()
        for task in self._flat.tasks:
            self._place(task)
        if self.host:
            self.host |= {task for task in self._ahead if _has(operation(task), _is_check)}

    def _is_ahead(self, wire: Wire) -> bool:
        return wire in self._given or wire[0] in self._ahead

    def _sizes_of_tables(self) -> dict[Wire, tf.Tensor]:
        """Returns the numbers of entries of tables, of which layers make sizes."""
        return {
            (task, 0): tf.raw_ops.LookupTableSizeV2(
                table_handle=self._captured[task.inputs[0][1] - len(self._specs)]
            )
            for task in self._flat.tasks
            if task in self._ahead and operation(task).type == "LookupTableSizeV2"
        }

    def _place(self, task: Task) -> None:
        if task in self._ahead:
            outputs = [(task, index) for index in range(len(operation(task).outputs))]
            is_open = any(map(self._is_open, [*task.inputs, *outputs]))
            is_open = is_open or self._counts_into_open(task)
            if is_open or _has(operation(task), _is_of_host):
                self.host.add(task)
        elif _has_strings(operation(task)) or any(map(self._is_of_host, task.inputs)):
            raise refusals.of_strings(self._graph, operation(task))

    def _is_open(self, wire: Wire) -> bool:
        """Returns whether a value is one that only the host has, or of an open size."""
        if wire in self._known and self._known[wire][0].dtype not in _OF_HOST:
            return not self._known[wire][0].shape.is_fully_defined()
        return self._is_of_host(wire)

    def _counts_into_open(self, task: Task) -> bool:
        """Returns whether an operation counts into so many numbers as its inputs decide."""
        if operation(task).type != "DenseBincount":
            return False
        _, size = self._known.get(task.inputs[1], (None, None))
        return size is None

    def _is_of_host(self, wire: Wire) -> bool:
        if wire[0] in self.host:
            return self._known[wire][0].dtype in _OF_HOST
        return wire in self._given and self._given[wire].dtype == tf.string

    def parts(self) -> tuple[HostPart, Callable[..., Any]]:
        """Returns both parts: see `split`."""
        flat, count = self._flat, len(self._specs)
        controls = [task for task in flat.controls if task not in self.host]
        of_devices = _needed(flat, [*(task for task, _ in flat.outputs), *controls], self.host)
        used = [*flat.outputs, *(wire for task in of_devices for wire in task.inputs)]
        used = list(dict.fromkeys(used))
        given = [wire for wire in used if wire[0] is flat.arguments and wire[1] < count]
        from_host = [wire for wire in used if wire[0] in self.host]
        constants = {w: self._known[w][1] for w in from_host if self._known[w][1] is not None}
        from_host = [wire for wire in from_host if wire not in constants]
        sizes = [wire for wire in from_host if operation(wire[0]).type in _SIZES]
        from_host = [wire for wire in from_host if wire not in sizes]
        late = [task for task in flat.tasks if task not in self._ahead]
        of_host = Piece(self._graph, _needed(flat, self.host, late))
        rest = Piece(self._graph, of_devices)

        @tf.function(autograph=False)
        def on_host(*tensors: tf.Tensor) -> list[tf.Tensor]:
            own = {(flat.arguments, index): each for index, each in enumerate(tensors)}
            return of_host.write(own | self._captures(of_host), [*from_host, *sizes])

        def on_devices(values: Sequence[Any], *tensors: tf.Tensor) -> list[tf.Tensor]:
            known = constants | dict(zip(sizes, values, strict=True))
            own = {wire: tf.constant(known[wire], _dtype(wire)) for wire in known}
            own |= dict(zip([*given, *from_host], tensors, strict=True))
            return rest.write(own | self._captures(rest), flat.outputs)

        in_order = [task for task in flat.tasks if task in self.host]
        causes = [task for task in in_order if _has(operation(task), _is_of_host)] or in_order
        places = dict.fromkeys(operation(task).place() for task in causes)
        kept = tuple(index for _, index in given)
        function = on_host.get_concrete_function(*self._specs)
        return HostPart(function, len(sizes), kept, tuple(places)), on_devices

    def _captures(self, piece: Piece) -> dict[Wire, tf.Tensor]:
        """Returns what a piece uses of captured tensors, captured by the graph that is built."""
        graph: Any = tf.compat.v1.get_default_graph()
        captured = dict(enumerate(self._captured, len(self._specs)))
        return {
            wire: graph.capture(captured[wire[1]])
            for wire in piece.given
            if wire[0] is self._flat.arguments and wire[1] in captured
        }


def _needed(flat: Flattened, ends: Iterable[Task], given: Collection[Task]) -> list[Task]:
    """Returns the operations that some need, these among them, but for those that are given."""
    seen: set[Task] = set()
    open_ = list(ends)
    while open_:
        task = open_.pop()
        if task not in seen and task not in given and task is not flat.arguments:
            seen.add(task)
            open_ += [*(source for source, _ in task.inputs), *task.controls]
    return [task for task in flat.tasks if task in seen]


def _written(flat: Flattened) -> set[int]:
    """Returns the places of the arguments that an operation may write, such as tables."""
    return {
        index
        for task in flat.tasks
        if not _is_pure(operation(task))
        for source, index in task.inputs
        if source is flat.arguments
    }


def _is_pure(op: SourceOp) -> bool:
    """Returns whether what an operation gives depends on its inputs alone, which it only reads."""
    inner = _functions(op)
    if op.type.startswith("Stateless") and op.type not in _CONTROL_FLOW:
        return False  # it draws: XLA draws other numbers, and a step has all of one kind
    if op.is_stateful and op.type not in _PURE and not (inner and op.type in _CONTROL_FLOW):
        return False
    return all(_is_pure(each) for each in inner)


def _is_of_host(op: SourceOp) -> bool:
    return refusals.is_of_host(op.node)


def _has_strings(op: SourceOp) -> bool:
    gives = op.type not in ("Const", "Identity") and any(
        each.dtype == tf.string for each in op.outputs
    )
    return gives or refusals.has_strings(op.node)


def _is_check(op: SourceOp) -> bool:
    return op.type == "Assert"


def _has(op: SourceOp, is_one: Callable[[SourceOp], bool]) -> bool:
    """Returns whether an operation is such a one, or calls a function that has one."""
    return is_one(op) or any(_has(each, is_one) for each in _functions(op))


def _dtype(wire: Wire) -> tf.DType:
    return operation(wire[0]).outputs[wire[1]].dtype


def _functions(op: SourceOp) -> list[SourceOp]:
    """Returns the operations of the functions that an operation calls, such as a loop's body."""
    attrs = op.node.attr.values()
    names = [each.func.name for each in attrs if each.HasField("func")]
    names += [func.name for each in attrs for func in each.list.func]
    graphs = [op.graph.function(name) for name in names]
    inputs = {tensor.op for graph in graphs for tensor in graph.inputs}
    return [each for graph in graphs for each in graph.ops if each not in inputs]
