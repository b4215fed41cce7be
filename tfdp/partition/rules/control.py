"""Branches and loops: their functions are partitioned like the one that holds them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp.partition.conversions import Waiting
from tfdp.partition.layouts import LOCAL, PARTIAL, REPLICATED, Layout, Listed, Sharded, join
from tfdp.partition.list_conversions import MixedError
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.source import SourceGraph, SourceTensor
from tfdp.partition.tensors import LoopVariable, Tensor, static_shape
from tfdp.partition.writing import Called, Output, Writer, unique_name

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
        summands = {
            id(tensor): tensor
            for tensor, layout in zip(self.outputs, layouts, strict=True)
            if tensor.layout == PARTIAL and layout != PARTIAL and tensor.whole is None
        }
        if summands:
            convert.sum(list(summands.values()), "a branch or a loop gives it")
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
    chosen = choice.local if is_own else step.whole(choice, "it chooses a branch")
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
    layouts = [_joined(outputs) for outputs in zip(*every, strict=True)]
    if is_own:
        layouts = [LOCAL for _ in layouts]
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
    shapes = [_common_shape(step, outputs) for outputs in zip(*every, strict=True)]
    entries = [_common_entries(step, outputs) for outputs in zip(*every, strict=True)]
    found = step.results(results, layouts, shapes, entries)
    for tensor, each in zip(found, zip(*every, strict=True), strict=True):
        tensor.variables = frozenset().union(*(own.variables for own in each))
    return found


@rule("While", "StatelessWhile", always=True, partial=True, apart=True)
@_again_if_mixed
def loop(step: Step) -> Results:
    """Gives what can hold the inputs and what the body makes of them, by a fixed point.

    What the body leaves as it is keeps its layout; where the body needs it whole, it is sent once,
    before the loop. What the body only adds summands to is a summand until after the loop. What it
    then needs summed is whole in each round.
    """
    body_graph, condition_graph = step.op.function("body"), step.op.function("cond")
    fixed = [_is_passed(body_graph, index) for index in range(len(step.inputs))]
    carried = [index for index, is_fixed in enumerate(fixed) if not is_fixed]
    state = [_Carried.of(step.inputs[index], body_graph.inputs[index]) for index in carried]
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
            each.joined(step, body.outputs[index])
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
    for index, each, output in zip(carried, state, outputs, strict=False):
        found[index] = each.tensor(output)
        found[index].variables = step.inputs[index].variables
    return found


class _Carried(LoopVariable):
    """What is known of a loop's variable in every round, and whether it must be whole in each."""

    def __init__(
        self,
        layout: Layout,
        shape: list[Any] | None,
        entries: np.ndarray | None,
        is_whole: bool = False,
    ) -> None:
        self.layout, self.shape, self.entries, self.is_whole = layout, shape, entries, is_whole

    @classmethod
    def of(cls, tensor: Tensor, inside: SourceTensor) -> _Carried:
        """Returns what is known before the first round."""
        shape = static_shape(inside.shape)
        if shape is None:
            shape = tensor.shape
        elif tensor.shape is not None:
            shape = [b if a is None else a for a, b in zip(shape, tensor.shape, strict=True)]
        return cls(tensor.layout, shape, tensor.entries)

    def joined(self, step: Step, after: Tensor) -> _Carried:
        """Returns what is known where a round may have given another tensor."""
        own = self.tensor(after.local)
        empty = isinstance(self.layout, Listed) and self.layout.is_empty
        entries = after.entries if empty else _common_entries(step, [own, after])
        if self.entries is None and not empty:
            entries = None
        shape = self.shape
        if shape is not None and after.shape is not None and len(shape) == len(after.shape):
            shape = [a if _is_same(a, b) else None for a, b in zip(shape, after.shape, strict=True)]
        else:
            shape = None
        layout = _joined([own, after])
        is_whole = self.is_whole or (self.layout == PARTIAL and self.is_summed)
        if is_whole and layout == PARTIAL:
            layout = REPLICATED
        return _Carried(layout, shape, entries, is_whole)

    def tensor(self, output: Output) -> Tensor:
        """Returns the variable as a tensor."""
        shape = None if self.shape is None else list(self.shape)
        if isinstance(self.layout, Sharded) and shape is not None:
            shape[self.layout.axis] = self.layout.length
        tensor = Tensor(output, self.layout, shape, self.entries)
        tensor.variables = frozenset([] if self.is_whole else [self])
        return tensor

    def equals(self, other: _Carried) -> bool:
        """Returns whether the same is known."""
        same_entries = (self.entries is None and other.entries is None) or (
            self.entries is not None
            and other.entries is not None
            and self.entries.shape == other.entries.shape
            and bool((self.entries == other.entries).all())
        )
        return self.layout == other.layout and self.shape == other.shape and same_entries


def _inside(
    step: Step, writer: Writer, carried: Sequence[int], state: Sequence[_Carried]
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


def _joined(tensors: Sequence[Tensor]) -> Layout:
    """Returns the layout that can hold any of some tensors: a cut only of sizes that are known."""
    layout = functools.reduce(join, [tensor.layout for tensor in tensors])
    if isinstance(layout, Sharded):
        for tensor in tensors:
            if tensor.rank is None or tensor.rank != tensors[0].rank or tensor.rank <= layout.axis:
                return REPLICATED
            if tensor.layout != layout and tensor.dim(layout.axis) != layout.length:
                return REPLICATED
    return layout


def _is_empty(tensor: Tensor) -> bool:
    return isinstance(tensor.layout, Listed) and tensor.layout.is_empty


def _is_same(a: Any, b: Any) -> bool:
    return a is not None and a == b


def _common_shape(step: Step, tensors: Sequence[Tensor]) -> list[Any] | None:
    """Returns the sizes that all of some tensors have, and that the function around can compute."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape is None or len(shape) != len(shapes[0] or ()) for shape in shapes):
        return None
    return [
        sizes[0]
        if all(_is_same(sizes[0], size) for size in sizes)
        and step.program.knows(step.writer, sizes[0])
        else None
        for sizes in zip(*(shape for shape in shapes if shape is not None), strict=True)
    ]


def _common_entries(step: Step, tensors: Sequence[Tensor]) -> np.ndarray | None:
    """Returns the value that all of some tensors have, if the function around can compute it.

    Of lists and optionals it is that of their elements, if they have any.
    """
    tensors = [each for each in tensors if not _is_empty(each)] or tensors
    first = tensors[0].entries
    for tensor in tensors:
        own = tensor.entries
        if own is None or first is None or own.shape != first.shape or (own != first).any():
            return None
    if first is None or not all(step.program.knows(step.writer, e) for e in first.ravel()):
        return None
    return first
