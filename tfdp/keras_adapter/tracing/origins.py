"""Origins: whether a tensor is the same on all replicas and, if not, what makes it differ."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.tracing.marks import Mark, mark_of
from tfdp.keras_adapter.tracing.walk import Node, Place, Walk

# Operations whose outputs are the same wherever they run. So is `Shape`, if the shape is fixed.
_ALIKE = ("Const", "CollectiveReduceV2", "CollectiveGatherV2", "CollectiveBcastRecvV2")
READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")


class Origin(enum.Flag):
    """The sources of a tensor, besides constants and variables that are alike everywhere.

    Attributes:
      ALIKE: No other source.
      TOGETHER: Values that replicas have summed or gathered, and so have alike.
      SUM: Gradients that were summed over replicas.
      LOCAL: A replica's own gradients, which wait for their sum.
      RANDOM: Random numbers that each replica draws for itself.
      DATA: The replica's examples, or a source that is not known.
      OWN: LOCAL, RANDOM and DATA: the sources that differ with a replica's examples.
      UPDATE: Gradients that each replica takes by itself, under a `synchronization`.
      APART: Variables that each replica updates by itself.
    """

    ALIKE = 0
    TOGETHER = enum.auto()
    SUM = enum.auto()
    LOCAL = enum.auto()
    RANDOM = enum.auto()
    DATA = enum.auto()
    OWN = LOCAL | RANDOM | DATA
    UPDATE = enum.auto()
    APART = enum.auto()


_OF_MARKS = {
    Mark.GLOBAL: Origin.TOGETHER,
    Mark.LOSS: Origin.TOGETHER,
    Mark.MEAN: Origin.DATA,
    Mark.SUM: Origin.SUM,
    Mark.LOCAL: Origin.LOCAL,
    Mark.RANDOM: Origin.RANDOM,
    Mark.ROWS: Origin.DATA,
    Mark.FITS: Origin.RANDOM,
    Mark.SPREAD: Origin.DATA,
    Mark.CLAIMED: Origin.DATA,
    Mark.RANK: Origin.DATA,
    Mark.STATE: Origin.DATA,
    Mark.OWN: Origin.UPDATE,
    Mark.APART: Origin.APART,
}


def is_random(kind: str) -> bool:
    """Returns whether operations of the type `kind` draw random numbers."""
    return "Random" in kind or "Multinomial" in kind or "Truncated" in kind


def origins(
    values: Iterable[Any],
    apart: Iterable[Any] = (),
    walk: Walk | None = None,
    alike: Callable[[Place, Node], bool] | None = None,
) -> Origin:
    """Returns the sources from which `values` were computed.

    Args:
      values: Tensors, or places of a walk.
      apart: Variables that count as data, such as those that this replica has written by itself.
      walk: The walk to go on with; a new one by default.
      alike: A function that says of further operations whether their output is the same on all
        replicas.
    """
    walk = walk or Walk()
    data = {id(handle) for variable in apart for handle in handles(variable)}
    found = Origin.ALIKE
    seen: set[tuple[int, int]] = set()
    ahead = [value if isinstance(value, Place) else Place(value) for value in values]
    while ahead:
        place = ahead.pop()
        if place.key in seen:
            continue
        seen.add(place.key)
        if mark_of(place.tensor) is None:
            place, node = walk.made_by(place)
        else:
            node = None
        known = mark_of(place.tensor)
        if known is not None:
            found |= Origin.DATA if id(place.tensor) in data else _OF_MARKS[known]
        elif node is None:
            found |= _from_outside(place)
        elif node.type in READS:
            found |= _of_variable(walk, node.inputs[0], data)
            ahead += node.inputs[1:]
        elif (
            node.type in _ALIKE
            or _is_fixed_shape(node.type, node.inputs)
            or (alike is not None and alike(place, node))
        ):
            continue
        elif is_random(node.type) and not node.type.startswith("Stateless"):
            found |= Origin.RANDOM
            ahead += node.inputs
        elif not node.inputs:
            found |= Origin.DATA
        else:
            ahead += node.inputs
    return found


def _of_variable(walk: Walk, place: Place, data: set[int]) -> Origin:
    """Returns a variable's origin: ALIKE, or what its mark says."""
    handle = walk.made_by(place)[0].tensor
    if tf.is_symbolic_tensor(handle) or id(handle) in data:
        return Origin.DATA
    known = mark_of(handle)
    return Origin.ALIKE if known is None else _OF_MARKS[known]


def handles(variable: Any) -> list[Any]:
    """Returns the handles of a variable of Keras or TensorFlow, one for each local replica."""
    if not isinstance(variable, (tf.Variable, tf.distribute.DistributedValues)):
        variable = variable.value
    return [copy.handle for copy in getattr(variable, "values", [variable])]


def _from_outside(place: Place) -> Origin:
    """Returns the origin of a tensor that no operation of the trace made."""
    tensor = place.tensor
    constant = not tf.is_symbolic_tensor(tensor) and tensor.dtype != tf.resource
    return Origin.ALIKE if constant else Origin.DATA


def _is_fixed_shape(kind: str, inputs: list[Place]) -> bool:
    return kind in _SHAPES and all(p.tensor.shape.is_fully_defined() for p in inputs)
