"""`jit_compile=True` on CPU: the forward pass and its gradient are compiled, communication is not.

XLA has no collective on CPU. The model's call becomes a compiled function of its own; TensorFlow
compiles that function's gradient as well. Losses, metrics and the optimizer stay outside.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    Layer,
    flatten_layers,
    get_keras_mask,
    jit_compile,
    kept_losses,
    own_losses,
    set_keras_mask,
)
from tfdp.keras_adapter.layers.outputs import mark_outputs
from tfdp.keras_adapter.step import Phase, Step, current

_COMPILED = "its call was compiled"

# Of each model: whether its call is to be compiled, or `_COMPILED`; what `compile` was asked for.
_COMPILES: weakref.WeakKeyDictionary[Layer, Any] = weakref.WeakKeyDictionary()
_ASKED: weakref.WeakKeyDictionary[Layer, bool] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def forward_only(model: keras.Model) -> Iterator[None]:
    """Keras makes its step functions without `jit_compile`; the model's call is compiled."""
    compiles = model.jit_compile
    _COMPILES[model] = bool(compiles)
    jit_compile.set(model, False)
    try:
        yield
    finally:
        jit_compile.set(model, compiles)


def note_asked(model: keras.Model, given: Any) -> None:
    """Notes what `compile` was asked for."""
    _ASKED[model] = given is True


def say_if_nothing_was_compiled(model: keras.Model) -> None:
    """Logs once, after a step, that a model which was to be compiled was never called."""
    if _ASKED.pop(model, False) and _COMPILES.get(model) is True:
        logging.getLogger("tfdp").warning(
            "`jit_compile=True` compiled nothing of %r: on CPU it compiles the model's call, and "
            "this model's `train_step` never calls it. To compile a part of it, wrap that part in "
            "`tf.function(jit_compile=True)`.",
            model.name,
        )


@hook(Layer, "__call__")
def call(original: Callable[..., Any], self: Layer, *args: Any, **kwargs: Any) -> Any:
    """A call inside a replica: a model's is compiled where the model asks for it."""
    step = current()
    if step is None:
        return original(self, *args, **kwargs)
    if _COMPILES.get(self) and not step.compiling and not tf.executing_eagerly():
        _COMPILES[self] = _COMPILED
        outputs = _compiled(step, original, self, args, kwargs)
    else:
        outputs = original(self, *args, **kwargs)
    mark_outputs(step, self, (args, kwargs), outputs)
    return outputs


def _compiled(
    step: Step, original: Callable[..., Any], model: Layer, args: Any, kwargs: Any
) -> Any:
    layers = list(flatten_layers(model))
    outputs_are: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)
    def forward() -> Any:
        with step.during(Phase.COMPILED):
            outputs = original(model, *args, **kwargs)
        flat = tf.nest.flatten(outputs)
        outputs_are.append(outputs)
        masks = [get_keras_mask(leaf) for leaf in flat]
        losses = [own_losses(layer) for layer in layers]
        return flat, masks, losses

    flat, masks, losses = forward()
    for leaf, mask in zip(flat, masks, strict=True):
        if mask is not None:
            set_keras_mask(leaf, mask)
    # What `add_loss` kept are tensors of the inner graph: those outside take their place.
    for layer, outer in zip(layers, losses, strict=True):
        kept_losses(layer).clear()
        kept_losses(layer).extend(outer)
    return tf.nest.pack_sequence_as(outputs_are[-1], flat)
