"""The search in the traced program for what mixes the examples of a loss's values."""

from __future__ import annotations

from typing import Any

from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.layout_rules import ELEMENTWISE, Layout
from tfdp.keras_adapter.tracing.layouts import Layouts
from tfdp.keras_adapter.tracing.marks import mark_of
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.terms import Kind, UnknownTerm, terms_of
from tfdp.keras_adapter.tracing.walk import Node, Place, Walk

_OF_LENGTHS = ("Shape", "ShapeN", "Size", "Rank")
# Operations whose whole numbers say which examples are meant.
_OF_PLACES = ("Pack", "ConcatV2", "Range", "Where")
_PASSING = ("Squeeze", "Reshape", "ExpandDims", "Cast", "Identity")
# The program shows what loops and branches are given and what they return, not what they do.
_OF_LOOPS = ("While", "StatelessWhile", "TensorListFromTensor", "TensorListStack")
_OF_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


def mixing(step: Step, values: Any, of_keras: bool) -> Node | None:
    """Finds an operation that mixes the replica's examples and whose result is in `values`.

    It passes by means over the examples that are added to each value: these do no harm.

    Args:
      step: The replica's step, with a share.
      values: The values of a loss, not a scalar.
      of_keras: Whether the loss is known not to mix what it is given. If not, an operation is
        found, too, that is not seen to keep examples apart.
    """
    assert step.share is not None
    walk = Walk()
    # The result serves for a warning at most, so lengths need not be compared when the step runs.
    layouts = Layouts(walk, step.share.rows, lambda *_: None)
    if layouts.of(Place(values)) is not Layout.UNKNOWN:
        return None
    ahead, seen = [(Place(values), True)], set()
    while ahead:
        place, added = ahead.pop()
        if place.key in seen or mark_of(place.tensor) is not None:
            continue
        seen.add(place.key)
        if added and place.tensor.shape.rank == 0 and place.frame is None:
            try:
                if all(
                    term.kind is not Kind.SUM for term in terms_of(step, place.tensor, checks=False)
                ):
                    continue
            except UnknownTerm:
                pass
        place, node = walk.made_by(place)
        if node is None:
            continue
        mixes = _mixes(layouts, walk, place, node)
        if mixes or (not of_keras and _may_mix(layouts, walk, place, node)):
            return node
        adds = node.type in ("Add", "AddV2", "AddN", "Sub", "Cast", "Identity", "Neg")
        ahead += [(value, added and adds) for value in node.inputs]
    return None


def _mixes(layouts: Layouts, walk: Walk, place: Place, node: Node) -> bool:
    if layouts.of(place) is not Layout.UNKNOWN:
        return False
    given = [layouts.of(value) for value in node.inputs]
    if node.type in ("Sum", "Mean"):
        return given[0] is Layout.ROWS and place.tensor.dtype.is_floating
    if node.type == "MatMul":
        return Layout.FREE not in given and bool(origins([node.inputs[1]], walk=walk) & Origin.DATA)
    if node.type not in ELEMENTWISE or Layout.UNKNOWN in given:
        return False
    # Equal ranks and still no known layout: (1, examples) was broadcast against (examples, 1).
    own = [v for v, la in zip(node.inputs, given, strict=True) if la is not Layout.FREE]
    return len({value.tensor.shape.rank for value in own}) == 1


def _may_mix(layouts: Layouts, walk: Walk, place: Place, node: Node) -> bool:
    """Returns whether it is this operation whose result is not seen to be of single examples."""
    opaque = node.type in _OF_LENGTHS + _OF_LOOPS + _OF_BRANCHES or node.is_function
    if layouts.of(place) is not Layout.UNKNOWN or opaque or _picks(walk, node):
        return False
    if node.type in _OF_PLACES and not place.tensor.dtype.is_floating:
        return False
    # Of whole numbers many are made of lengths; those that are not are found where they begin.
    given = [(layouts.of(value), value.tensor.dtype.is_floating) for value in node.inputs]
    counted = {layout for layout, floating in given if floating or layout is not Layout.UNKNOWN}
    return Layout.UNKNOWN not in counted and bool(counted - {Layout.FREE})


def _picks(walk: Walk, node: Node) -> bool:
    """Returns whether an operation leaves examples out, or takes a number out of each."""
    if node.type not in ("GatherV2", "GatherNd"):
        return False
    made = _made_by(walk, node.inputs[1])
    if made is not None and made.type in ("Pack", "ConcatV2") and node.type == "GatherNd":
        first = _made_by(walk, made.inputs[0])  # as tf.stack([tf.range(examples), labels], axis=1)
        return first is not None and first.type == "Range"
    return made is not None and made.type == "Where"  # as tf.boolean_mask


def _made_by(walk: Walk, place: Place) -> Node | None:
    """Returns the operation that a tensor's numbers come from, whatever its shape was before."""
    _, node = walk.made_by(place)
    while node is not None and node.type in _PASSING:
        _, node = walk.made_by(node.inputs[0])
    return node
