"""Gradients that reach an optimizer: which are summed over replicas, and which are still to be."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.errors import GradientError
from tfdp.keras_adapter.gradients.weighing import weight_of
from tfdp.keras_adapter.gradients.windows import used_before_sum
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.layouts import Layouts, layouts_of
from tfdp.keras_adapter.tracing.marks import Mark, mark_of, own_of
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import Place, Walk
from tfdp.replicas import Value

_ADDITIONS = ("Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast")
_SCALINGS = ("Mul", "RealDiv", "Div", "DivNoNan")


@dataclasses.dataclass(frozen=True)
class Arrived:
    """One gradient as an optimizer gets it.

    Attributes:
      value: A tensor or IndexedSlices, or None.
      local: Whether it is the replica's own term of a sum that is still to be made; if not, all
        replicas have the same value, or each its own, where there is a `synchronization`.
    """

    value: Value | None
    local: bool


def arrived(step: Step, gradient: Value | None) -> Arrived:
    """Tells whether a gradient in a step of Keras' trainer is summed, and weighs it if it is not.

    A gradient made by hand, or for each example, has passed no tape's target and so gets its weight
    here. Where replicas drew random numbers, each its own, into a gradient that is otherwise the
    same on all, every replica takes replica 0's result: one device draws once.

    Raises:
      GradientError: Replicas would part, or it is not known what the gradient's sum means.
    """
    share = step.share
    assert share is not None
    own = own_of(gradient)
    if own is not None:
        return Arrived(own, local=True)
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if gradient is None or mark_of(tensor) in (Mark.SUM, Mark.OWN):
        return Arrived(gradient, local=False)
    walk = Walk()
    origin = origins([tensor], step.differing, walk)
    if Origin.UPDATE in origin:  # what a replica does with a gradient of its own is its own
        return Arrived(gradient, local=False)
    apart = origin & (Origin.LOCAL | Origin.DATA)
    if Origin.LOCAL in origin:
        if origin == Origin.LOCAL and _is_linear(step, layouts_of(step, walk), walk, tensor):
            return Arrived(gradient, local=True)
        raise used_before_sum(step, "changes it")
    if not apart:
        return Arrived(_of_first(step, gradient) if Origin.RANDOM in origin else gradient, False)
    if Origin.SUM in origin:
        raise GradientError(
            "What is done with a gradient must be the same on all replicas, for it is that of the "
            f"whole batch already, but {step.trace.name} computes with its own examples what "
            "becomes of it. Sum those over replicas first, such as by `tf.distribute."
            'get_replica_context().all_reduce("SUM", value)`.'
        )
    weight = weight_of(step, tensor)
    return Arrived(map_values(lambda value: _weighed(share, value, weight), gradient), local=True)


def _weighed(share: Share, value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    return share.scaled(value, weight)


def _of_first(step: Step, gradient: Value) -> Value:
    return step.replicas.broadcast_from_first(gradient, gradient.dtype)


def _is_linear(step: Step, layouts: Layouts, walk: Walk, tensor: tf.Tensor) -> bool:
    """Returns whether `tensor` is linear in waiting gradients, with factors alike on all replicas.

    Only then may the sum over replicas still wait: sum(f(g_r)) = f(sum(g_r)).
    """
    operations: list[Any] = []

    def linear(place: Place) -> bool:
        if mark_of(place.tensor) is Mark.LOCAL:
            return True
        place, node = walk.made_by(place)
        if node is None:
            return False
        operations.append(node.attributes)
        if node.type in _ADDITIONS:
            return all(linear(value) for value in node.inputs)
        if node.type in _SCALINGS and layouts.is_free(node.inputs[1]):
            return linear(node.inputs[0])
        return node.type == "Mul" and layouts.is_free(node.inputs[0]) and linear(node.inputs[1])

    if not linear(Place(tensor)):
        return False
    step.linear += operations
    return True
