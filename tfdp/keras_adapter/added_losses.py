"""What layers add with `add_loss`: each replica's own.

Replicas share the layers, and their lists of losses. Where replicas take turns, eagerly or around
an `all_gather`, one would find the losses of another there, or clear them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._keras import Layer
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import Step, current

_OWNER = "_tfdp_added_in"


@hook(Layer, "add_loss")
def add_loss(original: Callable[..., Any], self: Layer, loss: Any) -> None:
    """Notes in which replica's step a loss was added."""
    step = current()
    if step is not None:
        # Not the tensor itself, which another replica may add, too.
        loss = tf.nest.map_structure(lambda x: tf.identity(x) if tf.is_tensor(x) else x, loss)
        for added in tf.nest.flatten(loss):
            if tf.is_tensor(added):
                setattr(added, _OWNER, step)
    original(self, loss)


@hook(Layer, "_get_own_losses")
def get_own_losses(original: Callable[..., Any], self: Layer) -> list[Any]:
    """Those that this replica added; outside of replicas the first one's."""
    step = current()
    losses = original(self)
    if step is None:
        return [loss for loss in losses if (owner := _owner(loss)) is None or owner.rank == 0]
    return [loss for loss in losses if _owner(loss) in (None, step)]


@hook(Layer, "_clear_losses")
def clear_losses(original: Callable[..., Any], self: Layer) -> None:
    """Leaves those of the other replicas of the same step."""
    step = current()
    kept = [] if step is None else [x for x in self._losses if _is_of_another(step, _owner(x))]
    original(self)
    self._losses.extend(kept)


def _owner(loss: Any) -> Step | None:
    return getattr(loss, _OWNER, None)


def _is_of_another(step: Step, owner: Step | None) -> bool:
    # The replicas of one step share its generator.
    return owner is not None and owner is not step and owner.unseeded is step.unseeded
