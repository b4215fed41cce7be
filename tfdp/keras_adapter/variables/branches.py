"""What a step does in branches and loops that depend on a replica's own examples.

A value may be the same on all replicas, and yet not all of them write it: in `tf.cond(tf.reduce_max
(x) > 3, ...)` each asks its own examples. Nor do replicas draw equally often in a loop over their
examples. The operation that asks is made after the branch is traced, so the end of the step looks.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._tensorflow import function_named
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import BRANCHES, LOOPS, Frame, Node, Place, Walk

DRAW = "draw random numbers"
_DRAW_BEFORE = (
    "Draw for all examples before it, `keras.random.normal((keras.ops.shape(x)[0], ...))`, and "
    "give a loop over the examples each one's numbers."
)
_DECIDE_TOGETHER = (
    "Let all decide alike: from what `tfdp.whole_batch(x)` returns, or from a sum, "
    '`tf.distribute.get_replica_context().all_reduce("SUM", value)`.'
)


@dataclasses.dataclass(frozen=True)
class Inner:
    """Something that a step does in a graph within its own: a branch, a loop or a function.

    Attributes:
      graph: The graph.
      act: What is done, for an error; None where a mean is made of what is written.
      variable: The variable that is written, if there is one.
    """

    graph: Any
    act: str | None
    variable: Any = None


def note(step: Step, act: str | None, variable: Any = None) -> None:
    """Keeps what is done now for `check`, if it is done in a branch, a loop or a function."""
    if step.share is None or step.num_replicas == 1 or tf.executing_eagerly():
        return
    if not step.ending.is_in_own_graph:
        step.inner.append(Inner(tf.compat.v1.get_default_graph(), act, variable))


def check(step: Step) -> None:
    """Checks that all replicas do what they must do alike, in branches and loops, too.

    A variable of which the step's end makes one value counts as one that replicas write
    differently.

    Raises:
      ValueError: A branch or loop depends on the replica's own examples.
    """
    inner, step.inner = step.inner, []
    own: dict[int, bool] = {}
    walk = Walk()
    for one in inner:
        if id(one.graph) not in own:
            own[id(one.graph)] = any(
                _is_own(step, walk, frame) for frame in walk.calls_of(one.graph)
            )
        if not own[id(one.graph)]:
            continue
        if one.act is not None:
            raise ValueError(
                f"All replicas must {one.act} equally often, but {step.trace.name} does so in a "
                "branch or a loop that depends on its own examples. "
                f"{_DRAW_BEFORE if one.act == DRAW else _DECIDE_TOGETHER}"
            )
        step.differing.append(one.variable)


def _is_own(step: Step, walk: Walk, frame: Frame | None) -> bool:
    """Returns whether the replica's examples decide how often a call of a function is made."""
    assert step.share is not None
    alike = functools.partial(_is_other_length, walk, step.share.rows)
    while frame is not None:
        call, outer = frame.call, frame.outer
        asked = []
        if call.type in BRANCHES:
            asked = [Place(call.inputs[0], outer)]
        elif call.type in LOOPS:
            asked = _conditions(walk, call, outer)
        if origins(asked, walk=walk, alike=alike) & Origin.OWN:
            return True
        frame = outer
    return False


def _conditions(walk: Walk, loop: Any, outer: Frame | None) -> list[Place]:
    """Returns a loop's condition at first, and what its body makes of the values that it reads."""
    condition, body = (
        function_named(loop.graph, loop.get_attr(name).name).graph for name in ("cond", "body")
    )
    read = [index for index, value in enumerate(condition.inputs) if value.consumers()]
    within = walk.frame(outer, loop, body, 0)
    return [
        *(Place(value, walk.frame(outer, loop, condition, 0)) for value in condition.outputs),
        *(Place(body.outputs[index], within) for index in read),
    ]


def _is_other_length(walk: Walk, rows: int | None, place: Place, node: Node) -> bool:
    """Returns whether a number is a length, and not that of the examples: of time, of words."""
    if node.type not in ("StridedSlice", "GatherV2") or place.tensor.shape.num_elements() != 1:
        return False
    _, shape = walk.made_by(node.inputs[0])
    index = constant_value(node.inputs[1])
    if shape is None or shape.type != "Shape" or index is None:
        return False
    axis, sizes = int(index.reshape(-1)[0]), shape.inputs[0].tensor.shape
    return axis != 0 or (bool(sizes.rank) and sizes[0] not in (None, rows))
