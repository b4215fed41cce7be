"""`jit_compile=True` on CPU: the forward pass and its gradient are compiled, communication is not.

XLA has no collective on CPU. The model's call becomes a compiled function of its own; TensorFlow
compiles that function's gradient as well. Losses, metrics and the optimizer stay outside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter._keras import Layer, get_keras_mask, set_keras_mask
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import Phase, Step, current

_MARK = "_tfdp_compiles_forward"


@contextlib.contextmanager
def forward_only(model: keras.Model) -> Iterator[None]:
    """Keras makes its step functions without `jit_compile`; the model's call is compiled."""
    jit_compile = model.jit_compile
    model.__dict__[_MARK] = bool(jit_compile)
    model._jit_compile = False
    try:
        yield
    finally:
        model._jit_compile = jit_compile


@hook(Layer, "__call__")
def call(original: Callable[..., Any], self: Layer, *args: Any, **kwargs: Any) -> Any:
    """The model's call inside a replica, compiled where the model asks for it."""
    if not self.__dict__.get(_MARK):
        return original(self, *args, **kwargs)
    step = current()
    if step is None or step.compiling or tf.executing_eagerly():
        return original(self, *args, **kwargs)
    return _compiled(step, original, self, args, kwargs)


def _compiled(
    step: Step, original: Callable[..., Any], model: Layer, args: Any, kwargs: Any
) -> Any:
    layers = list(model._flatten_layers())
    outputs_are: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)
    def forward() -> Any:
        with step.during(Phase.COMPILED):
            outputs = original(model, *args, **kwargs)
        flat = tf.nest.flatten(outputs)
        outputs_are.append(outputs)
        masks = [get_keras_mask(leaf) for leaf in flat]
        losses = [list(layer._losses) for layer in layers]
        return flat, masks, losses

    flat, masks, losses = forward()
    for leaf, mask in zip(flat, masks, strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)
    # What `add_loss` kept are tensors of the inner graph: those outside take their place.
    for layer, outer in zip(layers, losses, strict=True):
        layer._losses.clear()
        layer._losses.extend(outer)
    return tf.nest.pack_sequence_as(outputs_are[-1], flat)
