"""Branches and loops: their functions are partitioned like the one that holds them."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdp.partition.emit.writer import Called, Output, Writer, unique_name
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout
from tfdp.partition.list_redistribute import MixedError
from tfdp.partition.program_record import Gathered
from tfdp.partition.redistribute import Waiting
from tfdp.partition.rules.carried import (
    Carried,
    cause_of,
    common_entries,
    common_shape,
    is_sharded,
    joined_layout,
)
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.source import SourceGraph
from tfdp.partition.tensors import Tensor

# More rounds than layouts can change in: each only goes towards whole.
_MOST_ROUNDS = 20


class Body:
    """A function that an operation calls, partitioned.

    Args:
      step: The operation.
      graph: The function.
      name: The beginning of its name.
    """

    def __init__(self, step: Step, graph: SourceGraph, name: str) -> None:
        self._step, self.graph = step, graph
        self.writer = Writer(unique_name(name), step.writer)
        self._walk = step.walk.inside(self.writer)
        self.outputs: list[Tensor] = []
        self._effects: list[str] = []

    def run(self, inputs: Sequence[Tensor]) -> None:
        """Writes the function's operations, given its arguments."""
        self.outputs, self._effects = self._walk.run(self.graph, inputs)

    def converted(self, layouts: Sequence[Layout]) -> list[Output]:
        """Returns the outputs in other layouts; what must be summed for it is."""
        convert = self._walk.convert
        convert.op = self._step.op
        partials = {
            id(tensor): tensor
            for tensor, layout in zip(self.outputs, layouts, strict=True)
            if tensor.layout == PARTIAL and layout != PARTIAL and tensor.replicated is None
        }
        if partials:
            convert.sum(list(partials.values()), "a branch or a loop gives it")
        return [
            convert.to(tensor, layout, "a branch or a loop gives it")
            for tensor, layout in zip(self.outputs, layouts, strict=True)
        ]

    def finish(self, outputs: Sequence[Output], captures: Sequence[Output]) -> str:
        """Completes the function, with captures in a given order, and returns its name."""
        program = self._step.program
        effects = program.effects(self.writer, self._effects)
        program.functions.append(self.writer.finish(outputs, effects, captures))
        return self.writer.name


def _again_if_mixed(write: Callable[[Step], Results]) -> Callable[[Step], Results]:
    """Has a rule write once more, with all that branches keep whole, what keeps too many kinds."""

    @functools.wraps(write)
    def written(step: Step) -> Results:
        program = step.program
        mark = program.mark()
        try:
            return write(step)
        except MixedError:
            if program.keeps_whole:
                raise
        program.go_back(mark, step.writer)
        program.keeps_whole = True
        try:
            return write(step)
        finally:
            program.keeps_whole = False

    return written


@rule("If", "StatelessIf", "Case", "StatelessCase", always=True, partial=True, apart=True)
@_again_if_mixed
def branch(step: Step) -> Results:
    """Gives what can hold either branch's outputs; a whole number or truth value chooses.

    What a branch needs of others' is sent within it, when it is taken.
    """
    choice, *given = step.inputs
    step.require_sums([choice])
    is_own = choice.layout == LOCAL
    chosen = choice.local if is_own else step.replicated(choice, "it chooses a branch")
    cases = step.op.type.endswith("Case")
    attrs = ["branches"] if cases else ["then_branch", "else_branch"]
    names = [each.name for each in step.op.attr("branches")] if cases else []
    graphs = (
        [step.op.graph.function(name) for name in names]
        if cases
        else [step.op.function(attr) for attr in attrs]
    )
    bodies = [Body(step, graph, "branch") for graph in graphs]
    for body in bodies:
        body.run([tensor.within() for tensor in given])
    every = [body.outputs for body in bodies]
    layouts = [joined_layout(outputs) for outputs in zip(*every, strict=True)]
    if is_own:
        layouts = [LOCAL for _ in layouts]
    causes = [
        cause_of(step, tensors, layout)
        for tensors, layout in zip(zip(*every, strict=True), layouts, strict=True)
    ]
    _note(step, causes, zip(*every, strict=True))
    outputs = [body.converted(layouts) for body in bodies]
    captures = list(dict.fromkeys(each for body in bodies for each in body.writer.captures))
    captures += [
        outside
        for body, found in zip(bodies, outputs, strict=True)
        for outside in _passed(body.writer, found)
        if outside not in captures
    ]
    captures = list(dict.fromkeys(captures))
    called = [
        Called(body.finish(found, captures)) for body, found in zip(bodies, outputs, strict=True)
    ]
    functions: dict[str, Any] = (
        {"branches": called} if cases else dict(zip(attrs, called, strict=True))
    )
    if not cases:
        functions["Tcond"] = choice.dtype

    def write() -> list[Output]:
        return step.writer.node(
            "Case" if cases else "If",
            [chosen, *captures],
            Tin=[each.dtype for each in captures],
            Tout=[tensor.dtype for tensor in step.op.outputs],
            output_shapes=[],
            _lower_using_switch_merge=True,
            **functions,
        )

    communicates = any(step.program.communicates(body.writer) for body in bodies)
    if communicates and is_own:
        raise ValueError("each replica chooses by itself a branch in which they communicate")
    results = step.program.in_order(step.writer, write) if communicates else write()
    shapes = [common_shape(step, outputs) for outputs in zip(*every, strict=True)]
    entries = [common_entries(step, outputs) for outputs in zip(*every, strict=True)]
    found = step.results(results, layouts, shapes, entries)
    for tensor, each, cause in zip(found, zip(*every, strict=True), causes, strict=True):
        tensor.variables = frozenset().union(*(own.variables for own in each))
        tensor.cause = cause
    return found


@rule("While", "StatelessWhile", always=True, partial=True, apart=True)
@_again_if_mixed
def loop(step: Step) -> Results:
    """Gives what can hold the inputs and what the body makes of them, by a fixed point.

    A variable of rows of which a round may leave any number is whole, and gathered once. What the
    body leaves as it is keeps its layout; where the body needs it whole, it is sent once,
    before the loop. What the body only adds partials to is a partial until after the loop. What it
    then needs summed is whole in each round.
    """
    body_graph, condition_graph = step.op.function("body"), step.op.function("cond")
    fixed = [_is_passed(body_graph, index) for index in range(len(step.inputs))]
    carried = [index for index, is_fixed in enumerate(fixed) if not is_fixed]
    state = [Carried.of(step.inputs[index], body_graph.inputs[index]) for index in carried]
    for _ in range(_MOST_ROUNDS + 2 * len(carried)):
        mark = step.program.mark()
        condition = Body(step, condition_graph, "loop_condition")
        body = Body(step, body_graph, "loop_body")
        try:
            condition.run(_inside(step, condition.writer, carried, state))
            body.run(_inside(step, body.writer, carried, state))
        except Waiting:  # for sums that are made before the loop, which is then begun anew
            step.program.go_back(mark, step.writer)
            raise
        after = [
            each.joined(step, step.inputs[index], body.outputs[index])
            for each, index in zip(state, carried, strict=True)
        ]
        if all(a.equals(b) for a, b in zip(state, after, strict=True)):
            break
        step.program.go_back(mark, step.writer)
        state = after
    else:
        raise ValueError("the layouts of a loop's variables find no fixed point")
    initial = [step.inputs[index] for index in carried]
    step.require_sums([t for t, each in zip(initial, state, strict=True) if each.layout != PARTIAL])
    body.outputs = [body.outputs[index] for index in carried]
    results = body.converted([each.layout for each in state])
    decided = condition.converted([REPLICATED])
    captures = list(
        dict.fromkeys(
            [
                *body.writer.captures,
                *condition.writer.captures,
                *_passed(body.writer, results),
                *_passed(condition.writer, decided),
            ]
        )
    )
    passed = [body.writer.use(outside) for outside in captures]
    functions = {
        "body": Called(body.finish([*results, *passed], captures)),
        "cond": Called(condition.finish(decided, captures)),
    }
    causes = [
        each.cause or cause_of(step, [tensor, made], each.layout)
        for tensor, made, each in zip(initial, body.outputs, state, strict=True)
    ]
    _note(step, causes, ([tensor] for tensor in initial))
    begin = [step.to(tensor, each.layout) for tensor, each in zip(initial, state, strict=True)]
    inputs = [*begin, *captures]

    # One round at a time sends: those of others that do not need each other would be mixed up.
    communicates = any(step.program.communicates(each.writer) for each in (body, condition))

    def write() -> list[Output]:
        return step.writer.node(
            "While",
            inputs,
            T=[each.dtype for each in inputs],
            output_shapes=[],
            parallel_iterations=1 if communicates else step.op.attr("parallel_iterations") or 10,
            _lower_using_switch_merge=True,
            **functions,
        )

    outputs = step.program.in_order(step.writer, write) if communicates else write()
    found = list(step.inputs)
    for index, each, output, cause in zip(carried, state, outputs, causes, strict=False):
        found[index] = each.tensor(output)
        found[index].variables = step.inputs[index].variables
        found[index].cause = cause
    return found


def _inside(
    step: Step, writer: Writer, carried: Sequence[int], state: Sequence[Carried]
) -> list[Tensor]:
    """Returns a loop's variables as one of its functions has them."""
    arguments = {
        index: each.tensor(writer.argument(f"variable_{index}", step.inputs[index].dtype))
        for index, each in zip(carried, state, strict=True)
    }
    found = []
    for index, tensor in enumerate(step.inputs):
        if index in arguments:
            found.append(arguments[index])
            continue
        inner = tensor.within()
        inner.origin = tensor.origin or tensor
        found.append(inner)
    return found


def _note(step: Step, causes: Sequence[Gathered | None], given: Iterable[Sequence[Tensor]]) -> None:
    """Records what the operation itself makes whole, before it is gathered."""
    for cause, tensors in zip(causes, given, strict=True):
        if cause is not None and any(map(is_sharded, tensors)):
            step.program.report.whole.append(cause)


def _is_passed(body: SourceGraph, index: int) -> bool:
    """Returns whether a loop's body gives a variable back as it is."""
    tensor = body.outputs[index]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor is body.inputs[index]


def _passed(writer: Writer, outputs: Sequence[Output]) -> list[Output]:
    """Returns the tensors from around a function that it gives back as they are."""
    assert writer.outer is not None
    return [writer.outer.use(output) for output in outputs if output.writer is not writer]
