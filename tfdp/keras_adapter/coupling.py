"""Losses in which each example is set against others of its batch, as far as the program shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.keras_adapter.layouts import Layout
from tfdp.keras_adapter.origins import Origin, origins
from tfdp.keras_adapter.provenance import mark_of
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.terms import Kind, UnknownTerm
from tfdp.keras_adapter.traced import Node, Place, Walk
from tfdp.keras_adapter.weighing import layouts_of, terms_of

_EXACT = (
    "Exact are values for each example, a mean or a sum over the batch axis, and the loss of the "
    "whole batch, which `tfdp.whole_batch` brings to every replica"
)


def is_of_whole_batch(step: Step, values: Any) -> bool:
    """Whether a loss's values are the same on all replicas, from examples that were gathered.

    Raises:
      GradientError: They are of a loss of Keras in which examples of the replica are mixed. Of any
        other such loss there is a warning.
    """
    if step.num_replicas == 1:
        return False
    walk = Walk()
    layouts = layouts_of(step, walk)
    if layouts.is_free(Place(values)):
        return True
    if layouts.of(Place(values)) is Layout.UNKNOWN:
        found = _mixing(step, walk, values)
        if found is not None:
            refuse_or_warn(step, name_of(step), f"`{found.type}` over the replica's examples")
    return False


def refuse_or_warn(step: Step, name: str, found: str) -> None:
    """Says that a loss is not, or may not be, that of the whole batch."""
    loss = step.loss
    function = getattr(loss, "fn", None)
    if function is not None and function.__module__.partition(".")[0] == "keras":
        axis = "name the `axis` of what is one example, or " if "axis" in loss._fn_kwargs else ""
        raise GradientError(
            "On several replicas a loss must be made of values of single examples, but "
            f"{name} sets examples against each other, and a replica has a part of them only. To "
            f"mend it {axis}give it the whole batch: in a subclass whose `call` begins with "
            "`y_true, y_pred = tfdp.whole_batch((y_true, y_pred))`."
        )
    assert step.share is not None
    if step.share.custom_loss != "mean":
        step.warn_once(
            name,
            "%s is not seen to be a mean or a sum over the examples of the batch (found %s): it is "
            "taken for such a mean, and trains otherwise than on one device if it is not. %s. "
            'If it is a mean, say so: DataParallelStrategy(custom_loss="mean").',
            name[0].upper() + name[1:], found, _EXACT,
        )  # fmt: skip


def name_of(step: Step, holders: Sequence[Any] = ()) -> str:
    """A loss as it is named to the user."""
    if holders:
        layer = holders[-1]
        return f"what {type(layer).__name__} {layer.name!r} gives to `add_loss`"
    function = getattr(step.loss, "fn", None)
    if function is not None and type(step.loss).__module__.partition(".")[0] == "keras":
        kind = type(step.loss).__name__
        name = function.__name__ if kind == "LossFunctionWrapper" else kind
        return f"the loss {name!r}"
    return "a loss" if step.loss is None else f"the loss {type(step.loss).__name__!r}"


def _mixing(step: Step, walk: Walk, values: Any) -> Node | None:
    """An operation that mixes the replica's examples and whose result is in `values`.

    Means over the examples that are added to values of each do no harm, and are passed by.
    """
    layouts = layouts_of(step, walk)
    ahead, seen = [(Place(values), True)], set()
    while ahead:
        place, added = ahead.pop()
        if place.key in seen or mark_of(place.tensor) is not None:
            continue
        seen.add(place.key)
        if added and place.tensor.shape.rank == 0 and place.frame is None:
            try:
                if all(term.kind is not Kind.SUM for term in terms_of(step, place.tensor)):
                    continue
            except UnknownTerm:
                pass
        place, node = walk.made_by(place)
        if node is None:
            continue
        given = [layouts.of(value) for value in node.inputs]
        if node.type in ("Sum", "Mean") and place.tensor.dtype.is_floating:
            if given[0] is Layout.ROWS and layouts.of(place) is Layout.UNKNOWN:
                return node
        elif node.type == "MatMul" and Layout.FREE not in given:
            if origins([node.inputs[1]], walk=walk) & Origin.DATA:
                return node
        adds = node.type in ("Add", "AddV2", "AddN", "Sub", "Cast", "Identity", "Neg")
        ahead += [(value, added and adds) for value in node.inputs]
    return None
