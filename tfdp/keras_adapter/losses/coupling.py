"""Losses that set examples against each other: Keras' own are refused, others named."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.keras_adapter.losses.mixing import mixing
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import layouts_of
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import Place, Walk
from tfdp.keras_adapter.whole_batch import whole_batch

_OF_BATCH = (keras.losses.circle, keras.losses.dice, keras.losses.tversky)
_CALL = keras.losses.MeanSquaredError.call  # shared by all losses that wrap a function
_EXACT = (
    "Exact are values for each example, a mean or a sum over the batch axis, and the loss of the "
    "whole batch, which `tfdp.whole_batch` brings to every replica"
)


def is_of_whole_batch(step: Step, values: Any) -> bool:
    """Returns whether `values` are those of the whole batch, which all replicas have together."""
    if step.share is None or step.num_replicas == 1 or not isinstance(values, tf.Tensor):
        return False
    if not values.shape.rank or values.shape[0] == (step.share.rows or -1):
        return False
    found = origins([values])
    return bool(found & Origin.TOGETHER) and not found & Origin.OWN


def weights_of_whole_batch(step: Step, weights: Any) -> Any:
    """Returns the weights of the whole batch, gathered unless they are scalar or global already."""
    if weights is None:
        return None
    weights = tf.convert_to_tensor(weights)
    as_they_are = weights.shape.rank == 0 or is_of_whole_batch(step, weights)
    return weights if as_they_are else whole_batch(weights)


def check(step: Step, values: Any) -> None:
    """Refuses or warns of a loss whose values mix the replica's examples: see `refuse_or_warn`.

    Raises:
      GradientError: It is a loss of Keras that sets examples against each other.
    """
    if step.num_replicas == 1:
        return
    found = mixing(step, values, of_keras=_is_of_keras(step.loss))
    if found is not None:
        refuse_or_warn(step, name_of(step), f"`{found.type}` over the replica's examples")


def refuse_or_warn(step: Step, name: str, found: str) -> None:
    """Refuses Keras' losses of whole batches; warns of others, unless the user says "mean".

    Args:
      step: The replica's step.
      name: The loss, as `name_of` has it.
      found: What the program shows of the loss.

    Raises:
      GradientError: It is a loss of Keras that sets examples against each other.
    """
    if getattr(step.loss, "fn", None) in _OF_BATCH:
        has_axis = "axis" in inspect.signature(step.loss.fn).parameters
        axis = "name the `axis` over which each example has a value, or " if has_axis else ""
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


def mark_rows(step: Step, predictions: Any, values: Any) -> None:
    """Marks the values of a loss of Keras as rows, where its predictions are rows."""
    if not _is_of_keras(step.loss):
        return
    if tf.is_tensor(predictions) and values.shape.rank:
        layouts = layouts_of(step, Walk(), checks=False)
        known = layouts.of(Place(values)) is not Layout.UNKNOWN
        if layouts.of(Place(predictions)) is Layout.ROWS and not known:
            mark(values, Mark.ROWS)


def _is_of_keras(loss: Any) -> bool:
    is_wrapper = getattr(type(loss), "call", None) is _CALL
    return is_wrapper and loss.fn in vars(keras.losses).values()


def name_of(step: Step, holders: Sequence[Any] = ()) -> str:
    """Returns the name of the loss for messages; `holders` are the layers that added it."""
    if holders:
        layer = holders[-1]
        return f"what {type(layer).__name__} {layer.name!r} gives to `add_loss`"
    function = getattr(step.loss, "fn", None)
    if function is not None and type(step.loss).__module__.partition(".")[0] == "keras":
        kind = type(step.loss).__name__
        name = function.__name__ if kind == "LossFunctionWrapper" else kind
        return f"the loss {name!r}"
    return "a loss" if step.loss is None else f"the loss {type(step.loss).__name__!r}"
