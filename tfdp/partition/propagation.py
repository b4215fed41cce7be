"""The walk over a function: each operation is written once its inputs are, by the rule of its type.

An operation without a rule, or whose rule cannot keep the layouts, gets replicated tensors, and
every replica computes it. In which order operations are written: see `schedule`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfdp.errors import PartitionError
from tfdp.partition import moment_patterns, row_ids
from tfdp.partition.emit.writer import Output, Writer
from tfdp.partition.flattening import Flattened, Task
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Listed, Sharded
from tfdp.partition.list_redistribute import MixedError
from tfdp.partition.operation_scheduler import OperationScheduler
from tfdp.partition.program_record import AFTER, EVERYWHERE, SHARE, WHOLE, Computed, Gathered
from tfdp.partition.replica_program import NeedlessError, ProgramBuilder
from tfdp.partition.rules import deterministic_scatter, resharding
from tfdp.partition.rules.registry import RULES, Results, Step
from tfdp.partition.rules.side_effects import is_effect, on_first
from tfdp.partition.shape_inference import known_values
from tfdp.partition.sizes import Size
from tfdp.partition.source import SourceGraph, SourceOp
from tfdp.partition.tensors import Tensor, summed
from tfdp.partition.variable_redistribute import VariableRedistribution


class Propagation:
    """Writes the operations of one function into a replica's function.

    Args:
      program: The program that the function belongs to.
      writer: The function to write.
    """

    def __init__(self, program: ProgramBuilder, writer: Writer) -> None:
        self.program, self.writer = program, writer
        self.convert = VariableRedistribution(program, writer)
        self._moments: dict[Task, moment_patterns.Moments] = {}

    def inside(self, writer: Writer) -> Propagation:
        """Returns a walk that writes a function which an operation of this one calls."""
        return Propagation(self.program, writer)

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
        self._moments = moment_patterns.find(function.tasks)
        OperationScheduler(self, function.tasks, function.outputs).run()
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
            step = Step(self, task.op, inputs, self._moments.get(task))
            self.convert.op = task.op
            task.results = self._results(step)
            resharding.follow(step, inputs, task.results)
            _keep_numbers(inputs, task.results)
            _keep_variables(task.op, inputs, task.results)
            row_ids.pass_on(task.op, inputs, task.results)
        except PartitionError:
            raise
        except (ValueError, TypeError, KeyError, AssertionError, NotImplementedError) as error:
            if isinstance(error, MixedError) and self.writer.outer and not self.program.keeps_whole:
                raise  # the branch or the loop around is written again
            raise PartitionError(
                f"A step must be a program whose operations can be partitioned, but {task.op.type} "
                f"at {task.op.line()} cannot: {error}. Move it out of the partitioned function."
            ) from error
        finally:
            self.writer.control = before
        task.written = self.writer.written[begin:]
        if task.written and task.op.type not in ("Const", "NoOp"):
            place = _place(step, inputs, task)
            cause = step.cause if place in (WHOLE, AFTER) else None
            self.program.report.computed.append(Computed(task.op.type, place, cause))

    def _results(self, step: Step) -> Sequence[Tensor]:
        rule = RULES.get(step.op.type)
        if rule is None or not rule.apart:
            self._prefetch(step)
        if rule is None or not rule.partial:
            self._sum(step)
        wholes = resharding.of_gathered(step)
        if wholes is not None:
            return self._of_gathered(step, wholes)
        layouts = [tensor.layout for tensor in step.inputs]
        everywhere = all(layout in (REPLICATED, PARTIAL) for layout in layouts)
        results: Results = None
        if rule is not None and (rule.always or not everywhere or PARTIAL in layouts):
            results = rule.write(step)
            if results is None and PARTIAL in layouts:
                self._sum(step)  # and the rule is asked again, of the sums
                return self._results(step)
        elif is_effect(step.op):
            if any(map(_has_rows, layouts)):
                step.cause = Gathered.of(step.op, "it happens once", step.inputs)
            results = on_first(step)
        elif everywhere:
            results = self._as_it_is(step)
        if results is None and LOCAL in layouts and not any(each.sharded for each in step.inputs):
            results = step.results(_emitted(step), LOCAL)
        if results is None:
            results = self._whole(step, "it has no rule" if rule is None else "it may mix examples")
        return results

    def _prefetch(self, step: Step) -> None:
        """Gathers sharded weights for an operation, beside rows of a batch or for a list.

        Sums come first, which stay: what is lent is taken back while the operation waits for them,
        and two that take turns would wait for ever.

        Raises:
          Waiting: They are not gathered yet, or not any more, or sums are to come first.
        """
        if not any(_has_rows(tensor.layout) for tensor in step.inputs):
            return
        weights = [index for index, tensor in enumerate(step.inputs) if _is_weight(tensor)]
        if weights:
            step.require_sums(step.inputs)
        step.require_joined([step.inputs[index] for index in weights], briefly=True)
        for index in weights:
            tensor = step.inputs[index]
            whole = step.replicated(tensor, "a batch is sharded beside it")
            step.inputs[index] = Tensor(whole, REPLICATED, tensor.shape, tensor.entries)

    def _sum(self, step: Step) -> None:
        """Has the operation's partials summed, and gives it the sums."""
        step.require_sums(step.inputs)
        for index, tensor in enumerate(step.inputs):
            if tensor.layout == PARTIAL:
                step.inputs[index] = summed(tensor)

    def _as_it_is(self, step: Step) -> Sequence[Tensor]:
        results = step.results(_emitted(step), REPLICATED)
        values = known_values.evaluate(step.op, step.inputs)
        for tensor, value in zip(results, values or (), strict=False):
            if value is not None:
                tensor.entries, tensor.shape = value, list(value.shape)
                self._share_length(tensor)
        return results

    def _share_length(self, tensor: Tensor) -> None:
        """Has all that is a batch's length be one number, which a GPU has copied to it once."""
        if tensor.entries is None or tensor.rank != 0 or tensor.dtype != tf.int32:
            return
        size = tensor.entries.item()
        if isinstance(size, Size) and size in map(Size.of, self.program.places):
            tensor.local = tensor.replicated = self.program.size(self.writer, size)

    def _of_gathered(self, step: Step, wholes: Step) -> Sequence[Tensor]:
        """Writes an operation on resharded tensors: gathered, and on the shards if it has rows.

        What nothing uses of both costs nothing. Where the parts would meet, as in a maximum over
        the batch, the whole is sharded once more.
        """
        found = list(self._as_it_is(wholes))
        step.moments = None  # the whole has them, and nothing is sent for them
        rule = RULES.get(step.op.type)
        parts: Results = None
        if rule is not None:
            with contextlib.suppress(NeedlessError), self.program.sending_nothing():
                parts = rule.write(step)
        step.is_after = True
        for at, tensor in enumerate(parts or ()):
            if tensor.sharded is not None:
                tensor.replicated = found[at].local
                found[at], step.is_after = tensor, False
        step.cause = next(tensor.cause for tensor in step.inputs if tensor.cause is not None)
        for tensor in found:
            tensor.cause = step.cause
        return found

    def _whole(self, step: Step, reason: str) -> Sequence[Tensor]:
        """Every replica computes the operation on replicated tensors."""
        if any(isinstance(tensor.layout, Listed) for tensor in step.inputs):
            raise ValueError("a tensor list is used in a way that has no rule")
        self._sum(step)
        step.note_gathered(reason)
        step.require_joined(step.inputs)
        why = f"{step.op.type} is computed on the gathered batch: {reason}"
        step.inputs = [
            Tensor(step.replicated(tensor, why), REPLICATED, tensor.shape, tensor.entries)
            for tensor in step.inputs
        ]
        if is_effect(step.op):
            return on_first(step)
        return self._as_it_is(step)


def _emitted(step: Step) -> list[Output]:
    """Writes an operation as it is, on what every replica has."""
    return deterministic_scatter.emit(step, [tensor.local for tensor in step.inputs])


def _has_rows(layout: Layout) -> bool:
    """Returns whether a tensor has rows of a batch, or may have, or is a replica's own."""
    if isinstance(layout, Listed):
        return True
    return layout == LOCAL or (isinstance(layout, Sharded) and not layout.is_fixed)


def _is_weight(tensor: Tensor) -> bool:
    """Returns whether replicas hold parts of a tensor as of a variable that is sharded."""
    is_value = tensor.dtype not in (tf.resource, tf.variant)
    return is_value and tensor.sharded is not None and tensor.sharded.is_fixed


def _keep_numbers(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Has partials that were made of partials keep their places in the order of sums.

    An optimizer that multiplies gradients by its rate does so from the first layer to the last,
    and they come to be from the last to the first.
    """
    numbers = [tensor.number for tensor in inputs if tensor.layout == PARTIAL]
    for tensor in results:
        if numbers and tensor.layout == PARTIAL:
            tensor.number = max(numbers)


def _keep_variables(op: SourceOp, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Notes which loops' variables the results are linear in."""
    rule = RULES.get(op.type)
    if rule is None or rule.apart:
        return
    given = [each for each in inputs if rule.partial or each.dtype == tf.variant]
    for tensor in results:
        alike = [each for each in given if _of_elements(each) == _of_elements(tensor)]
        tensor.variables = frozenset().union(*(each.variables for each in alike))


def _of_elements(tensor: Tensor) -> Layout | None:
    return tensor.layout.element if isinstance(tensor.layout, Listed) else tensor.layout


def _place(step: Step, inputs: Sequence[Tensor], task: Task) -> str:
    """Returns where an operation that has been written computes."""
    if step.is_whole:
        return WHOLE
    if step.is_after:
        return AFTER
    layouts = [tensor.layout for tensor in (*inputs, *(task.results or ()))]
    return EVERYWHERE if all(map(_is_everywhere, layouts)) else SHARE


def _is_everywhere(layout: Layout) -> bool:
    return layout.is_whole if isinstance(layout, Listed) else layout == REPLICATED
