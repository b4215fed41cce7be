"""The hooks that leave losses as they are under a strategy that compiles whole programs.

In a strategy's scope Keras divides a mean loss by the number of replicas, whose gradients it takes
to be summed. Outside of a program of all devices there are none: what runs there is one device's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import loss
from tfdp.replicas import compiler_of


@hook(loss, "scale_loss_for_distribution")
def scale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a mean loss as it is, in the scope of a strategy that compiles whole programs."""
    return value if compiler_of(tf.distribute.get_strategy()) is not None else original(value)


@hook(loss, "unscale_loss_for_distribution")
def unscale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a loss for a metric as it is, in the scope of such a strategy."""
    return value if compiler_of(tf.distribute.get_strategy()) is not None else original(value)
