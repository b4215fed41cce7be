"""The operations of a function and of those that it calls, in one order."""

from collections.abc import Sequence
from typing import TypeAlias

from tfdp.partition.marks import BOUNDARY, boundary_of, part_asked_for
from tfdp.partition.per_replica_call import per_replica_call_of
from tfdp.partition.source import SourceGraph, SourceOp, SourceTensor
from tfdp.partition.tensors import Tensor

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

# What these give is what they get, unless they wait for something.
_SAME = ("Identity", "IdentityN", "PreventGradient", "Snapshot", "StopGradient")


def _is_boundary(op: SourceOp) -> bool:
    if op.type != BOUNDARY:
        return False
    text = op.attr("message")
    return boundary_of(text) is not None or part_asked_for(text) is not None


class Task:
    """An operation in its place: a function that is called twice has two tasks for each operation.

    Attributes:
      op: The operation; None stands for the arguments of the function that is walked.
      number: Its place in the order of the trace.
      inputs: The tasks, with the output of each, that give its inputs.
      controls: The tasks that it waits for.
      results: Its outputs, once it is written.
      written: The names of the operations that stand for it, once it is written.
    """

    __slots__ = ("controls", "inputs", "number", "op", "results", "written")

    def __init__(self, op: SourceOp | None, number: int) -> None:
        self.op, self.number = op, number
        self.inputs: list[Wire] = []
        self.controls: list[Task] = []
        self.results: Sequence[Tensor] | None = None
        self.written: Sequence[str] = ()


Wire: TypeAlias = tuple[Task, int]


class Flattened:
    """A function, with the functions that it calls in the place of their calls.

    Calls that are compiled or differentiated apart are taken apart, too: what one device computes
    is the same.

    Attributes:
      arguments: The task whose results are the function's arguments.
      tasks: The operations that outputs or effects need, in the order of the trace.
      outputs: The tasks that give the outputs.
      controls: The tasks that a call waits for.
    """

    def __init__(self, graph: SourceGraph) -> None:
        self.arguments = Task(None, -1)
        self._all: list[Task] = []
        wires: list[Wire] = [(self.arguments, index) for index in range(len(graph.inputs))]
        outputs, self.controls = self._add(graph, wires)
        self.outputs = [self._without_wait(*wire) for wire in outputs]
        self.tasks = self._needed()

    def _add(self, graph: SourceGraph, inputs: Sequence[Wire]) -> tuple[list[Wire], list[Task]]:
        wires: dict[SourceTensor, Wire] = dict(zip(graph.inputs, inputs, strict=True))
        ends: dict[SourceOp, list[Task]] = {tensor.op: [] for tensor in graph.inputs}
        for op in graph.ops:
            if op in ends:
                continue
            given = [wires[tensor] for tensor in op.inputs]
            controls = [task for each in op.control_inputs for task in ends[each]]
            if op.type in CALLS and per_replica_call_of(op) is None:
                begin = len(self._all)
                outputs, last = self._add(op.function("f"), given)
                # Gradients of a function add outputs to its graph, which not all of its calls give.
                outputs = outputs[: len(op.outputs)]
                for task in self._all[begin:]:
                    # What a call waits for, each of its effects waits for.
                    if controls and (not task.inputs or task.op is None or task.op.is_stateful):
                        task.controls.extend(controls)
                wires.update(zip(op.outputs, outputs, strict=True))
                ends[op] = list(dict.fromkeys([*last, *(task for task, _ in outputs)]))
                continue
            if op.type in _SAME and not controls and not _is_boundary(op):
                wires.update(zip(op.outputs, given, strict=True))
                ends[op] = [source for source, _ in given if source is not self.arguments]
                continue
            task = Task(op, len(self._all))
            task.inputs, task.controls = given, controls
            self._all.append(task)
            wires.update({tensor: (task, index) for index, tensor in enumerate(op.outputs)})
            ends[op] = [task]
        found = [wires[tensor] for tensor in graph.outputs]
        return found, [task for op in graph.control_outputs for task in ends[op]]

    def _without_wait(self, task: Task, index: int) -> Wire:
        """Returns what gives an output that only waits for effects, which the call waits for too.

        So a partial that is returned is summed with the others, and not after the effects.
        """
        while task.op is not None and task.op.type in _SAME and not _is_boundary(task.op):
            self.controls += [each for each in task.controls if each not in self.controls]
            task, index = task.inputs[index]
        return task, index

    def _needed(self) -> list[Task]:
        seen: set[Task] = set()
        open_ = [*(task for task, _ in self.outputs), *self.controls]
        while open_:
            task = open_.pop()
            if task in seen or task is self.arguments:
                continue
            seen.add(task)
            open_ += [source for source, _ in task.inputs]
            open_ += task.controls
        return [task for task in self._all if task in seen]
