"""The marks on layers' outputs, which say where the examples lie in them.

The hooks that keep apart what replicas give to `add_loss`, and that mark a replica's number, are
here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import Layer
from tfdp.keras_adapter._tensorflow import is_computed_again
from tfdp.keras_adapter.step import Step, current
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import MARK_OF, Layouts
from tfdp.keras_adapter.tracing.marks import Claim, Mark, mark, mark_claimed, mark_of
from tfdp.keras_adapter.tracing.walk import Place, Walk

# Keras' layers return a row for each row of their input, except these, which run users' code.
_OF_USERS = (
    keras.Model,
    keras.layers.Lambda,
    keras.layers.TFSMLayer,
    keras.layers.JaxLayer,
    keras.layers.FlaxLayer,
    keras.layers.TorchModuleWrapper,
)


class Claims:
    """The layouts of tensors in a step, noted on them with the lengths that they depend on.

    Attributes:
      lengths: Pairs of values whose numbers of rows must be equal for the layouts to hold.
      layouts: Finds the layouts.
    """

    def __init__(self, step: Step, walk: Walk | None = None) -> None:
        assert step.share is not None
        self.lengths: list[tuple[Any, Any]] = []
        self.layouts = Layouts(
            walk or Walk(), step.share.rows, lambda *pair: self.lengths.append(pair)
        )

    def note(self, value: Any, layout: Layout) -> None:
        """Notes a layout on a tensor, as a claim where it depends on lengths."""
        if layout not in MARK_OF:
            return
        if self.lengths or layout is Layout.FITS:
            mark_claimed(value, Claim(layout, list(self.lengths)))
        else:
            mark(value, MARK_OF[layout])


def mark_outputs(step: Step, layer: Any, inputs: Any, outputs: Any) -> None:
    """Notes on a layer's outputs where the examples lie in them.

    Where the graph does not show it, an output is taken to have a row for each row of the input, as
    Keras' `predict` takes it. This is a claim: whoever relies on it has the lengths compared. What
    is computed again goes nowhere but into gradients, and is not followed.
    """
    if step.share is None or step.num_replicas == 1 or is_computed_again():
        return
    claims = Claims(step)
    given = [value for value in tf.nest.flatten(inputs) if _is_tensor(value)]
    with_rows = (v for v in given if claims.layouts.of(Place(v)) in (Layout.ROWS, Layout.FITS))
    like = next(with_rows, None)
    for value in tf.nest.flatten(outputs):
        if not _is_tensor(value) or mark_of(value) is not None:
            continue
        layout = claims.layouts.of(Place(value))
        if like is not None and layout in (Layout.UNKNOWN, Layout.SPREAD):
            of_keras = type(layer).__module__.partition(".")[0] == "keras"
            keeps_rows = of_keras and not isinstance(layer, _OF_USERS)
            layout = _as_rows(claims, value, like, keeps_rows) or layout
        claims.note(value, layout)


def _as_rows(claims: Claims, value: Any, like: Any, keeps_rows: bool) -> Layout | None:
    """Returns the layout of a value that has a row for each row of `like`; None if it cannot have.

    Where the graph does not show it, notes the two, whose lengths are then to be compared.
    """
    rows = claims.layouts.of(Place(like))
    if value.shape[0] is None:
        if not keeps_rows:
            claims.lengths.append((value, like))
        return rows
    if value.shape[0] != like.shape[0]:
        return None
    # In a trace a fixed length may equal the share's by chance; an eager tensor's length is the one
    # that was computed in this step.
    return rows if keeps_rows or not tf.is_symbolic_tensor(value) else Layout.FITS


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and bool(value.shape.rank)


def _own_losses(original: Callable[..., Any], self: Layer, *args: Any, **kwargs: Any) -> Any:
    """Keeps the losses that a replica gives to `add_loss` apart from those of other replicas.

    The replicas share the layer, and eagerly their threads take turns.
    """
    step = current()
    if step is not None:
        self.__dict__["_losses"] = step.added.setdefault(self, [])
    return original(self, *args, **kwargs)


for _name in ("add_loss", "_get_own_losses", "_clear_losses"):
    hook(Layer, _name)(_own_losses)


@hook(tf.distribute.ReplicaContext.__base__, "replica_id_in_sync_group")
def _number(original: Callable[..., Any], self: Any) -> Any:
    """Marks a replica's number, a constant in its trace that differs between replicas."""
    return mark(original(self), Mark.RANK)
