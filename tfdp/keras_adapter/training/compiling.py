"""`jit_compile=True` under a strategy: XLA compiles the model's call, its gradient and the update.

XLA has no collective on CPU. The model's call becomes a compiled function of its own, whose
gradient TensorFlow compiles as well. The update of the variables is another one: see
`gradients.optimizers`. Losses, metrics, clipping and accumulation are not compiled.
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

# For each model: whether its call is to be compiled, or `_COMPILED` once it was; and whether
# `compile` was given `jit_compile=True`.
_COMPILES: weakref.WeakKeyDictionary[Layer, Any] = weakref.WeakKeyDictionary()
_ASKED: weakref.WeakKeyDictionary[Layer, bool] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def forward_only(model: keras.Model) -> Iterator[None]:
    """Turns `jit_compile` off while Keras makes a step function; the model's call is compiled."""
    compiles = model.jit_compile
    _COMPILES[model] = bool(compiles)
    jit_compile.set(model, False)
    try:
        yield
    finally:
        jit_compile.set(model, compiles)


def asked(model: keras.Model) -> bool:
    """Returns whether the step of `model` is to be compiled, as far as it can be."""
    return bool(_COMPILES.get(model))


def note_asked(model: keras.Model, given: Any) -> None:
    """Notes whether `compile` was given `jit_compile=True`."""
    _ASKED[model] = given is True


def say_if_nothing_was_compiled(model: keras.Model) -> None:
    """Warns once, after a step, if the call of a model was to be compiled and never ran."""
    if _ASKED.pop(model, False) and _COMPILES.get(model) is True:
        logging.getLogger("tfdp").warning(
            "`jit_compile=True` compiled nothing of %r: on CPU it compiles the model's call, and "
            "this model's `train_step` never calls it. To compile a part of it, wrap that part in "
            "`tf.function(jit_compile=True)`.",
            model.name,
        )


@hook(Layer, "__call__")
def call(original: Callable[..., Any], self: Layer, *args: Any, **kwargs: Any) -> Any:
    """Compiles a model's call inside a replica if the model asks for it; marks layers' outputs."""
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
    # The losses that `add_loss` kept are tensors of the inner graph, and are replaced by the
    # corresponding outputs of the compiled function.
    for layer, outer in zip(layers, losses, strict=True):
        kept_losses(layer).clear()
        kept_losses(layer).extend(outer)
    return tf.nest.pack_sequence_as(outputs_are[-1], flat)
