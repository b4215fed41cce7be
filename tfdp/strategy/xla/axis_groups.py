"""Axes of a traced program's tensors that are sharded together, and what that sends.

The columns of a layer's kernel, its bias, what it computes, and the rows of the next layer's kernel
are one group: sharded along it, all operations between work on shards. A product that is summed
along the group gives partials, which an all-reduce sums.

1. The forward pass is walked in the order of its trace. An operation puts axes of its operands and
   results into one group, or it needs an axis gathered.
2. A group is *data* if an argument of the program has an axis in it, such as that of the batch.
3. A group is a *residual stream* if a product is summed along it, and what depends on that product
   is added to it again.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tfdp.partition.flattening import Flattened, Task, Wire
from tfdp.partition.source import SourceGraph, SourceTensor
from tfdp.strategy.xla.subgraphs import operation


class Weight(NamedTuple):
    """A variable whose handle a program captures.

    Attributes:
      path: Its path.
      shape: Its shape.
      bytes: The bytes of its value.
    """

    path: str
    shape: tuple[int, ...]
    bytes: int


class MeshCollective(NamedTuple):
    """What a step sends if a group is sharded.

    Attributes:
      kind: "all-reduce", "all-gather" or "all-to-all".
      bytes: The bytes of its result, for the whole batch.
      weight: The place of the weight whose product it is of; None: it is of no single one.
    """

    kind: str
    bytes: int
    weight: int | None


@dataclasses.dataclass
class Group:
    """Axes that are sharded together.

    Attributes:
      weights: The places of weights, and which of their axes are in the group.
      uses: How products and gathers use a weight: "columns", "rows" or "table".
      sent: What a step sends if they are sharded, by the tensor that it is of, for which it is sent
        once.
      is_data: Whether an argument of the program has such an axis.
      gathered_by: The operation that needs a weight, or what it sums itself, gathered.
      parted: The types of the operations that need gathered what is computed of it.
      summed, added: The products that are summed along it, and those whose results have it.
    """

    weights: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    uses: dict[int, set[str]] = dataclasses.field(default_factory=dict)
    sent: dict[tuple[Wire, str], MeshCollective] = dataclasses.field(default_factory=dict)
    is_data: bool = False
    gathered_by: str | None = None
    parted: set[str] = dataclasses.field(default_factory=set)
    summed: int = 0
    added: int = 0

    def take(self, other: "Group") -> None:
        """Takes what another group has."""
        self.weights += other.weights
        for weight, uses in other.uses.items():
            self.uses.setdefault(weight, set()).update(uses)
        self.sent = other.sent | self.sent
        self.is_data |= other.is_data
        self.gathered_by = self.gathered_by or other.gathered_by
        self.parted |= other.parted
        self.summed |= other.summed
        self.added |= other.added


class AxisGroups:
    """The groups of a program's axes.

    Axes of one entry are in none.

    Args:
      graph: The traced program.
      num_arguments: The number of its arguments, which what it captures follows.
      weights: By the places of their handles among the program's arguments the variables.
      size: The number of the shards, which must divide an axis that is reshaped.

    Attributes:
      tasks: The operations of the forward pass.
      before: For each product that a group names, by its number, those that it depends on, as bits.
    """

    def __init__(
        self, graph: SourceGraph, num_arguments: int, weights: Mapping[int, Weight], size: int
    ) -> None:
        self.weights, self.size = weights, size
        self._arguments = graph.inputs
        flat = Flattened(graph)
        self.tasks, self._flat = _forward(flat), flat
        self.before: list[int] = []
        self._parents: dict[tuple[Wire, int], tuple[Wire, int]] = {}
        self._groups: dict[tuple[Wire, int], Group] = {}
        self._weight_of: dict[Wire, int] = {}
        self._depends: dict[Task, int] = {}
        self._learned: set[Wire] = set()  # what depends on a weight, and so has a gradient
        self._used: set[tuple[int, str]] = set()  # a layer may be called again, of what it gave
        for place in weights:
            wire = flat.arguments, place
            self._weight_of[wire] = place
            for axis in range(len(weights[place].shape)):
                self.group(wire, axis).weights.append((place, axis))
        for place, tensor in enumerate(graph.inputs[:num_arguments]):
            if tensor.shape.rank is not None:
                for axis in range(tensor.shape.rank):
                    self.group((flat.arguments, place), axis).is_data = True

    def shape(self, wire: Wire) -> list[int]:
        """Returns the sizes of a tensor, in which an unknown one is 1: its axis is in no group."""
        tensor = self._tensor(wire)
        if wire in self._weight_of and wire[0].op is None:
            return list(self.weights[wire[1]].shape)
        if tensor.shape.rank is None:
            return []
        return [size or 1 for size in tensor.shape.as_list()]

    def bytes(self, wire: Wire) -> int:
        """Returns the bytes of a tensor."""
        return int(math.prod(self.shape(wire)) * self._tensor(wire).dtype.size)

    def weight_of(self, wire: Wire) -> int | None:
        """Returns the place of the weight that a tensor has in another form; None: it has none."""
        return self._weight_of.get(wire)

    def group(self, wire: Wire, axis: int) -> Group:
        """Returns the group of an axis."""
        return self._groups.setdefault(self._root((wire, axis)), Group())

    def all(self) -> list[Group]:
        """Returns the groups that have weights, in the order of these."""
        roots = [
            self._root(((self._flat.arguments, place), axis))
            for place, weight in self.weights.items()
            for axis in range(len(weight.shape))
        ]
        return [self._groups[root] for root in dict.fromkeys(roots)]

    def together(self) -> list[list[Group]]:
        """Returns for each tensor that has several axes in groups these groups."""
        wires: dict[Wire, int] = {}
        for wire, axis in [*self._parents, *self._groups]:
            wires[wire] = max(axis + 1, wires.get(wire, 0))
        found = (
            [self.group(wire, axis) for axis in range(rank) if self._is_long(wire, axis)]
            for wire, rank in wires.items()
        )
        return [groups for groups in found if len(groups) > 1]

    def begin(self, task: Task) -> None:
        """Notes what an operation depends on, before its rule is asked."""
        depends, op = 0, operation(task)
        for wire in task.inputs:
            depends |= self._depends.get(wire[0], 0)
        self._depends[task] = depends
        if any(wire in self._learned or wire in self._weight_of for wire in task.inputs):
            self._learned |= {(task, index) for index in range(len(op.outputs))}

    def same(self, wire: Wire, axis: int, other: Wire, other_axis: int) -> None:
        """Puts two axes into one group: of one size, or one has several entries for the other's."""
        if not (self._is_long(wire, axis) and self._is_long(other, other_axis)):
            return
        first, second = self._root((wire, axis)), self._root((other, other_axis))
        if first != second:
            self.group(*first).take(self.group(*second))
            self._parents[second] = first
            del self._groups[second]

    def alike(self, wire: Wire, other: Wire) -> None:
        """Puts axes of tensors into one group, counted from the right, where sizes are equal."""
        mine, others = self.shape(wire), self.shape(other)
        for back in range(1, min(len(mine), len(others)) + 1):
            if mine[-back] == others[-back]:
                self.same(wire, len(mine) - back, other, len(others) - back)

    def is_same_weight(self, wire: Wire, other: Wire) -> None:
        """Says that a tensor is a weight in another form, if the other one is."""
        if other in self._weight_of:
            self._weight_of[wire] = self._weight_of[other]

    def gather(self, task: Task, wire: Wire, axis: int, result: Wire | None = None) -> None:
        """Says that an operation needs an axis gathered.

        Args:
          task: The operation.
          wire: Its operand.
          axis: The axis.
          result: What has as its axis a part of that of the operand.
        """
        if not self._is_long(wire, axis):
            return
        group = self.group(wire, axis)
        if wire in self._weight_of:
            group.gathered_by = group.gathered_by or operation(task).type
        else:
            group.parted.add(operation(task).type)
        group.sent[wire, "gathered"] = MeshCollective("all-gather", self.bytes(wire), None)
        if group.is_data and result is not None and axis < len(self.shape(result)):
            self.group(result, axis).is_data = True

    def slice(self, task: Task, wire: Wire, axis: int, operand: Wire) -> None:
        """Says that an axis is sharded by slicing a replicated operand, whose gradient is gathered.

        Args:
          task: The operation.
          wire: Its result.
          axis: Its axis.
          operand: The operand.
        """
        if not self._is_long(wire, axis):
            return
        group = self.group(wire, axis)
        if operand in self._weight_of:
            group.gathered_by = group.gathered_by or operation(task).type
        elif operand in self._learned:
            group.parted.add(operation(task).type)
            group.sent[operand, "gathered"] = MeshCollective(
                "all-gather", self.bytes(operand), None
            )

    def move(self, part: tuple[Wire, int], of: tuple[Wire, int]) -> None:
        """Puts an axis and that of a part of it into one group: a shard of each is another's.

        A device is sent its shard of the part, and of its gradient.

        Args:
          part: A tensor and the axis of it that is shorter.
          of: The tensor that has it, and its axis.
        """
        self.same(*of, *part)
        if self._is_long(*part) and self._is_long(*of):
            group, count = self.group(*part), self.bytes(part[0]) // self.size
            group.sent[part[0], "moved"] = MeshCollective("all-to-all", count, None)
            if of[0] in self._learned or part[0] in self._learned:
                group.sent[part[0], "moved back"] = MeshCollective("all-to-all", count, None)

    def reduce(self, wire: Wire, axis: int, count: int) -> None:
        """Says that an operation reduces along an axis to so many bytes."""
        if self._is_long(wire, axis):
            sent = self.group(wire, axis).sent
            sent[wire, "reduced"] = MeshCollective("all-reduce", count, None)

    def sum(self, task: Task, axis: tuple[Wire, int], weight: int, use: str) -> None:
        """Says that a product with a weight, or a gather of a table, gives partials.

        Args:
          task: The operation.
          axis: The axis along which it is summed.
          weight: The place of the weight.
          use: "rows" or "table".
        """
        if self._is_long(*axis):
            group = self.group(*axis)
            group.uses.setdefault(weight, set()).add(use)
            result = task, 0
            group.sent[result, "summed"] = MeshCollective("all-reduce", self.bytes(result), weight)
            if use == "rows" and (weight, use) not in self._used:
                self._used.add((weight, use))
                group.summed |= self._bit(task)

    def add_columns(self, task: Task, axis: tuple[Wire, int], weight: int, operand: Wire) -> None:
        """Says that a product has its result's axis from a weight, and its operand's gradient so.

        Args:
          task: The operation.
          axis: The axis of the weight.
          weight: The place of the weight.
          operand: The other operand.
        """
        if self._is_long(*axis):
            group = self.group(*axis)
            group.uses.setdefault(weight, set()).add("columns")
            if (weight, "columns") not in self._used:
                self._used.add((weight, "columns"))
                group.added |= self._bit(task)
            if operand in self._learned:
                operand = self._before_views(operand)
                sent = MeshCollective("all-reduce", self.bytes(operand), weight)
                group.sent.setdefault((operand, "gradient"), sent)

    def refuse(self, task: Task, wire: Wire, axis: int) -> None:
        """Says that an operation sums along an axis what only it could sum, or shards badly."""
        if self._is_long(wire, axis):
            group = self.group(wire, axis)
            group.gathered_by = group.gathered_by or operation(task).type

    def is_residual(self, group: Group) -> bool:
        """Returns whether a group is a residual stream."""
        return any(
            group.added >> number & 1 and depends & group.summed
            for number, depends in enumerate(self.before)
        )

    def _before_views(self, wire: Wire) -> Wire:
        """Returns what a tensor is a reshaped, transposed or cast form of."""
        while wire[0].op is not None and wire[0].op.type in ("Cast", "Reshape", "Transpose"):
            wire = wire[0].inputs[0]
        return wire

    def _bit(self, task: Task) -> int:
        """Returns the bit of a product, on which all that follows depends from here on."""
        number = len(self.before)
        self.before.append(self._depends[task])
        self._depends[task] |= 1 << number
        return 1 << number

    def _is_long(self, wire: Wire, axis: int) -> bool:
        shape = self.shape(wire)
        return -len(shape) <= axis < len(shape) and shape[axis] != 1

    def _root(self, node: tuple[Wire, int]) -> tuple[Wire, int]:
        while node in self._parents:
            node = self._parents[node]
        return node

    def _tensor(self, wire: Wire) -> SourceTensor:
        task, index = wire
        return self._arguments[index] if task.op is None else task.op.outputs[index]


def _forward(flat: Flattened) -> list[Task]:
    """Returns the operations that depend on no gradient, by the names that tapes give."""
    backward: set[Task] = set()
    for task in flat.tasks:
        name = operation(task).name
        is_backward = name.startswith(("gradient_tape/", "gradients/"))
        if is_backward or any(wire[0] in backward for wire in task.inputs):
            backward.add(task)
    return [task for task in flat.tasks if task not in backward]


def axes_from(shape: Sequence[int], axes: Iterable[int]) -> set[int]:
    """Returns axes counted from the left.

    >>> axes_from([4, 8, 16], [-1, 0])
    {0, 2}
    """
    return {axis % len(shape) for axis in axes} if shape else set()
