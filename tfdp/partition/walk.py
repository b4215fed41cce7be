"""The walk over a function: each operation is written once its inputs are, by the rule of its type.

1. Operations are written in the order of the trace, as soon as their inputs are there.
2. One that needs the sum of summands is put off until nothing else can be written. All sums that
   are waited for then travel together, in buckets in the order in which the summands came to be.
3. An operation without a rule, or whose rule cannot keep the layouts, gets whole tensors, and every
   replica computes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tfdp.errors import PartitionError
from tfdp.partition import known_values, row_names
from tfdp.partition.conversions import Conversions, Waiting
from tfdp.partition.flattening import Flattened, Task, Wire
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Listed, Sharded
from tfdp.partition.program import Program
from tfdp.partition.report import EVERYWHERE, SHARE, WHOLE, Computed
from tfdp.partition.rules.effects import is_effect, on_first
from tfdp.partition.rules.registry import RULES, Results, Step
from tfdp.partition.source import SourceGraph, SourceOp
from tfdp.partition.tensors import Tensor
from tfdp.partition.writing import Writer

# So many types of operations are named of those that ask for sums.
_MOST_ASKING = 4


class Walk:
    """Writes the operations of one function into a replica's function.

    Args:
      program: The program that the function belongs to.
      writer: The function to write.
    """

    def __init__(self, program: Program, writer: Writer) -> None:
        self.program, self.writer = program, writer
        self.convert = Conversions(program, writer)

    def inside(self, writer: Writer) -> Walk:
        """Returns a walk that writes a function which an operation of this one calls."""
        return Walk(self.program, writer)

    def run(self, graph: SourceGraph, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[str]]:
        """Writes a function's operations.

        Args:
          graph: The function.
          inputs: Its arguments.

        Returns:
          Its outputs, and the names of the operations that stand for its effects.

        Raises:
          PartitionError: The function cannot be partitioned; the operation and the user's line.
          Waiting: An operation in a loop needs the sum of a tensor from outside of it.
        """
        function = Flattened(graph)
        function.arguments.results = list(inputs)
        _Schedule(self, function.tasks).run()
        outputs = []
        for task, index in function.outputs:
            assert task.results is not None
            outputs.append(task.results[index])
        return outputs, [name for task in function.controls for name in task.written]

    def write(self, task: Task, inputs: Sequence[Tensor]) -> None:
        """Writes one operation, once what it waits for is written.

        Raises:
          Waiting: It needs the sums of some of its inputs.
        """
        assert task.op is not None
        before = self.writer.control
        waited = [f"^{name}" for each in task.controls for name in each.written]
        self.writer.control = tuple(dict.fromkeys((*before, *waited)))
        begin = len(self.writer.written)
        try:
            step = Step(self, task.op, inputs)
            self.convert.op = task.op
            task.results = self._results(step)
            _keep_numbers(inputs, task.results)
            row_names.pass_on(task.op, inputs, task.results)
        except PartitionError:
            raise
        except (ValueError, TypeError, KeyError, AssertionError, NotImplementedError) as error:
            raise PartitionError(
                f"A step must be a program whose operations can be partitioned, but {task.op.type} "
                f"at {task.op.line()} cannot: {error}. Move it out of the partitioned function."
            ) from error
        finally:
            self.writer.control = before
        task.written = self.writer.written[begin:]
        if task.written and task.op.type not in ("Const", "NoOp"):
            self.program.report.computed.append(
                Computed(task.op.type, _place(step, inputs, task), self.writer.name, task.written)
            )

    def _results(self, step: Step) -> Sequence[Tensor]:
        rule = RULES.get(step.op.type)
        if rule is None or not rule.partial:
            self._sum(step)
        layouts = [tensor.layout for tensor in step.inputs]
        everywhere = all(layout in (REPLICATED, PARTIAL) for layout in layouts)
        results: Results = None
        if rule is not None and (rule.always or not everywhere or PARTIAL in layouts):
            results = rule.write(step)
            if results is None and PARTIAL in layouts:
                self._sum(step)  # and the rule is asked again, of the sums
                return self._results(step)
        elif is_effect(step.op):
            results = on_first(step)
        elif everywhere:
            results = self._as_it_is(step)
        if results is None and LOCAL in layouts and not any(each.sharded for each in step.inputs):
            results = step.results(step.emit(step.inputs), LOCAL)
        if results is None:
            results = self._whole(
                step, "it has no rule" if rule is None else "its rule cannot keep the layouts"
            )
        return results

    def _sum(self, step: Step) -> None:
        """Has the operation's summands summed, and gives it the sums."""
        step.require_sums(step.inputs)
        for index, tensor in enumerate(step.inputs):
            if tensor.layout == PARTIAL:
                step.inputs[index] = summed(tensor)

    def _as_it_is(self, step: Step) -> Sequence[Tensor]:
        shapes = known_values.shapes(step.op, step.inputs)
        results = step.results(step.emit(step.inputs), REPLICATED, shapes)
        values = known_values.evaluate(step.op, step.inputs)
        for tensor, value in zip(results, values or (), strict=False):
            if value is not None:
                tensor.entries, tensor.shape = value, list(value.shape)
        return results

    def _whole(self, step: Step, reason: str) -> Sequence[Tensor]:
        """Every replica computes the operation on whole tensors."""
        if any(isinstance(tensor.layout, Listed) for tensor in step.inputs):
            raise ValueError("a tensor list is used in a way that has no rule")
        self._sum(step)
        step.note_whole(reason)
        why = f"{step.op.type} is computed whole: {reason}"
        step.inputs = [
            Tensor(step.whole(tensor, why), REPLICATED, tensor.shape, tensor.entries)
            for tensor in step.inputs
        ]
        if is_effect(step.op):
            return on_first(step)
        return self._as_it_is(step)


def summed(tensor: Tensor) -> Tensor:
    """Returns the sum of a summand, once it is made, as a tensor of its own."""
    assert tensor.whole is not None
    return Tensor(tensor.whole, REPLICATED, tensor.shape, tensor.entries)


class _Schedule:
    """The order in which operations are written."""

    def __init__(self, walk: Walk, tasks: Sequence[Task]) -> None:
        self._walk, self._tasks = walk, {task.number: task for task in tasks}
        self._keeps_summands = walk.program.communicator.keeps_summands
        self._needs: dict[Task, int] = {}
        self._users: dict[Task, list[Task]] = {}
        self._ready: list[int] = []
        self._waiting: list[tuple[Task, Waiting]] = []

    def run(self) -> None:
        for task in self._tasks.values():
            sources = {source for source, _ in task.inputs} | set(task.controls)
            sources = {source for source in sources if source.op is not None}
            self._needs[task] = len(sources)
            for source in sources:
                self._users.setdefault(source, []).append(task)
            if not sources:
                heapq.heappush(self._ready, task.number)
        while self._ready or self._waiting:
            if not self._ready:
                self._sum()
            task = self._tasks[heapq.heappop(self._ready)]
            try:
                self._await_shared(task)
                self._walk.write(task, [self._given(task, wire) for wire in task.inputs])
            except Waiting as waiting:
                self._waiting.append((task, waiting))
                continue
            for user in self._users.get(task, ()):
                self._needs[user] -= 1
                if not self._needs[user]:
                    heapq.heappush(self._ready, user.number)

    def _given(self, task: Task, wire: Wire) -> Tensor:
        """Returns an input of an operation: of a summand that is summed already, the sum.

        Where summands are wanted they go on as such wherever they can.
        """
        tensor = _result(*wire)
        if self._keeps_summands and not _needs_whole(task, *wire):
            return tensor
        return known(tensor)

    def _await_shared(self, task: Task) -> None:
        """Puts off what could go on with a summand that another operation needs the sum of.

        The sum is sent once then; else what is made of the summand would be sent as well.

        Raises:
          Waiting: It is better to wait.
        """
        if self._keeps_summands:
            return
        summands = []
        for source, index in task.inputs:
            tensor = _result(source, index)
            users = self._users.get(source, ())
            is_open = tensor.layout == PARTIAL and tensor.whole is None
            if is_open and any(_needs_whole(user, source, index) for user in users):
                summands.append(tensor)
        if summands:
            raise Waiting(summands)

    def _sum(self) -> None:
        """Sums and gathers all that is waited for, and lets what waits go on."""
        tensors = {id(tensor): tensor for _, each in self._waiting for tensor in each.tensors}
        outside = [each.origin for each in tensors.values() if each.origin is not None]
        if outside:
            raise Waiting(outside)
        first, _ = self._waiting[0]
        self._walk.convert.op = first.op
        wanted: dict[int, set[Layout]] = {}
        for _, each in self._waiting:
            for tensor in each.tensors:
                wanted.setdefault(id(tensor), set()).add(each.layout or REPLICATED)
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.number)
        asking = _asking([task.op for task, _ in self._waiting if task.op is not None])
        cut = [tensor for tensor in ordered if tensor.sharded]
        parts = {
            id(tensor): layout
            for tensor in ordered
            if len(wanted[id(tensor)]) == 1
            for layout in wanted[id(tensor)]
            if isinstance(layout, Sharded)
        }
        scattered = [tensor for tensor in ordered if id(tensor) in parts]
        summands = [each for each in ordered if not (each.sharded or id(each) in parts)]
        convert = self._walk.convert
        convert.sum(summands, asking)
        convert.scatter(scattered, [parts[id(tensor)] for tensor in scattered], asking)
        convert.join(cut, asking)
        for task, _ in self._waiting:
            heapq.heappush(self._ready, task.number)
        self._waiting = []


def known(tensor: Tensor) -> Tensor:
    """Returns a tensor, or the sum of a summand if that is made already."""
    return summed(tensor) if tensor.layout == PARTIAL and tensor.whole is not None else tensor


def _needs_whole(user: Task, source: Task, index: int) -> bool:
    """Returns whether an operation can do nothing with a summand that it uses."""
    if user.op is None or (source, index) not in user.inputs:
        return False
    rule = RULES.get(user.op.type)
    return rule is None or not rule.partial


def _keep_numbers(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Has summands that were made of summands keep their places in the order of sums.

    An optimizer that multiplies gradients by its rate does so from the first layer to the last,
    and they come to be from the last to the first.
    """
    numbers = [tensor.number for tensor in inputs if tensor.layout == PARTIAL]
    for tensor in results:
        if numbers and tensor.layout == PARTIAL:
            tensor.number = max(numbers)


def _place(step: Step, inputs: Sequence[Tensor], task: Task) -> str:
    """Returns where an operation that has been written computes."""
    if step.is_whole:
        return WHOLE
    layouts = [tensor.layout for tensor in (*inputs, *(task.results or ()))]
    return EVERYWHERE if all(map(_is_everywhere, layouts)) else SHARE


def _is_everywhere(layout: Layout) -> bool:
    if isinstance(layout, Listed):
        return layout.element is None or _is_everywhere(layout.element)
    return layout == REPLICATED


def _asking(ops: Sequence[SourceOp]) -> str:
    """Says which operations ask for sums: the first of each of a few types, by the user's lines."""
    first = {op.type: op for op in reversed(ops)}
    by_line: dict[str, list[str]] = {}
    for type_ in list(dict.fromkeys(op.type for op in ops))[:_MOST_ASKING]:
        by_line.setdefault(first[type_].line(), []).append(type_)
    return "; ".join(f"{', '.join(types)} at {line}" for line, types in by_line.items())


def _result(task: Task, index: int) -> Tensor:
    assert task.results is not None
    return task.results[index]
