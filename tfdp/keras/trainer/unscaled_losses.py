"""The hooks that leave losses as they are where no replica computes them.

In a strategy's scope Keras divides a mean loss by the number of replicas, whose gradients it takes
to be summed. Outside of `strategy.run` they are not: what runs there is one device's.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import is_of_tfdp
from tfdp.keras._keras import loss


@hook(loss, "scale_loss_for_distribution")
def scale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a mean loss as it is, in the scope of a strategy of tfdp and outside of replicas."""
    return value if _is_of_one_device() else original(value)


@hook(loss, "unscale_loss_for_distribution")
def unscale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns a loss for a metric as it is, where it was left so."""
    return value if _is_of_one_device() else original(value)


def _is_of_one_device() -> bool:
    in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
    return is_of_tfdp(tf.distribute.get_strategy()) and not in_replica
