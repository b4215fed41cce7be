"""Programs whose sizes are all known when they are traced, where one device's trace knows fewer.

`fit` traces a step for batches of any length, and a compiler of fixed sizes for one of each. What
Keras makes of a known length must not make a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import CompileLoss, get_keras_mask, set_keras_mask


@hook(CompileLoss, "call")
def call(
    original: Callable[..., Any],
    self: CompileLoss,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    """Logs the losses of several outputs with the weights that they have on one device.

    Keras weighs each output's logged loss by the length of the batch where a trace knows it, and by
    1 where not, as in `fit` on one device: a short last batch would weigh less.
    """
    if one_device.program().sizes_are_fixed and len(keras.tree.flatten(y_pred)) > 1:
        y_pred = keras.tree.map_structure(_of_any_length, y_pred)
    return original(self, y_true, y_pred, sample_weight)


def _of_any_length(predicted: Any) -> Any:
    """Returns a tensor with the same numbers, of which no trace knows the length."""
    if not tf.is_tensor(predicted) or not predicted.shape.rank:
        return predicted
    found = tf.raw_ops.PlaceholderWithDefault(input=predicted, shape=[None, *predicted.shape[1:]])
    mask = get_keras_mask(predicted)
    if mask is not None:
        set_keras_mask(found, mask)
    return found
