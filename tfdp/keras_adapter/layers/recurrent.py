"""The hook of stateful recurrent layers: each replica goes on from its own examples' states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import flatten_layers
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Phase, Step, current
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.variables.effects import zero_if
from tfdp.keras_adapter.whole_batch import whole_batch


@hook(keras.layers.RNN, "call")
def call(
    original: Callable[..., Any],
    self: keras.layers.RNN,
    sequences: Any,
    initial_state: Any = None,
    mask: Any = None,
    training: Any = False,
) -> Any:
    """Calls a stateful layer with the replica's rows of the states, and writes all rows back.

    The layer's states are those of the whole batch, as on one device, the same on all replicas.
    """
    step = current()
    if not self.stateful or step is None or step.num_replicas == 1:
        return original(self, sequences, initial_state, mask, training)
    if step.share is None or step.compiling:
        raise RuntimeError(_refusal(self, step))
    if initial_state is None:
        own = _own_states(step.share, self.states)
        initial_state = tf.nest.map_structure(own, self.states)
    # Replicas share the layer, and their threads may take turns while it computes, so its
    # attributes must not change: a copy computes.
    stateless = object.__new__(type(self))
    vars(stateless).update(vars(self), stateful=False, return_state=True)
    output, *states = original(stateless, sequences, initial_state, mask, training)
    wholes = whole_batch(tf.nest.flatten(states))
    with step.during(Phase.WRITE):
        for variable, whole in zip(tf.nest.flatten(self.states), wholes, strict=True):
            variable.assign(tf.ensure_shape(whole, variable.shape))
    return (output, *states) if self.return_state else output


def check_states(model: keras.Model) -> None:
    """Raises ValueError if a stateful layer has no states yet: they must hold the whole batch."""
    for layer in flatten_layers(model):
        if isinstance(layer, keras.layers.RNN) and layer.stateful and layer.states is None:
            raise ValueError(
                "On several replicas the states of a stateful layer must be made for the whole "
                f"batch before training, but {layer.name!r} is not built, and a replica has a "
                "share of the batch. Give the size of the global batch: begin the model with "
                "keras.Input(batch_shape=(batch_size, steps, features))."
            )


def _own_states(share: Share, states: Any) -> Callable[[Any], tf.Tensor]:
    """Returns a function that returns the replica's rows of a state."""
    size = tf.nest.flatten(states)[0].shape[0]
    _, before, rows, total = tf.unstack(tf.convert_to_tensor(share.place))
    zero = zero_if(
        total == size,
        f"The states of a stateful layer hold {size} examples, all replicas together, and so must "
        "every batch, but one has more or fewer. Use drop_remainder=True, or data of a multiple of "
        f"{size} examples.",
    )
    # A stand-in may go on from any state, so its index is only kept in range.
    indices = tf.minimum(before + zero + tf.range(rows), size - 1)
    return lambda state: mark(tf.gather(tf.convert_to_tensor(state), indices), Mark.ROWS)


def _refusal(layer: Any, step: Step) -> str:
    where = "in `fit`, `evaluate` or `predict`"
    if step.compiling:
        where = "with jit_compile=False, for XLA on CPU has no collective"
    return (
        f"On several replicas a stateful layer must be called {where}, where each replica goes on "
        f"from the states of its own examples, but {layer.name!r} is not. There use "
        "stateful=False, return_state=True, and keep each replica's states yourself."
    )
