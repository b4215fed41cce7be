"""The comparison of what callbacks set: whether all ranks stop, and their learning rates.

A callback may set them at any time. Ranks of which some have it alone would part.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdp.communication.replicas import processes_of, unequal_data
from tfdp.keras._keras import KerasVariable, rate_of_optimizer
from tfdp.keras.nested_optimizers import optimizers_of


class EpochsCompared(keras.callbacks.Callback):
    """A callback that finds where another one, which not all ranks have, parts them.

    A rank that stops by itself would leave `fit`, save and end, and the others would wait for it.
    It must come after the callbacks that may stop `fit`. Each rank sends a message for an epoch.
    """

    async_safe = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares; all processes must call it.

        Raises:
          RankMismatchError: Some ranks stop, or have other learning rates.
        """
        processes = processes_of(self.model.distribute_strategy)
        if processes.world_size == 1:
            return
        options: dict[str, object] = {
            f"`stop_training` after epoch {epoch + 1}": bool(self.model.stop_training)
        }
        for name, rate in learning_rates(self.model).items():
            options[name] = unequal_data.readable(rate.numpy())
        subject = f"{unequal_data.SET_BY_CALLBACKS} by the end of an epoch"
        processes.compare(subject, options, unequal_data.FOR_CALLBACKS)


def learning_rates(model: Any) -> dict[str, tf.Tensor]:
    """Returns the learning rates that may be set, float32, by name; a schedule is no such rate."""
    found: dict[str, tf.Tensor] = {}
    for optimizer in optimizers_of(model):
        rate = rate_of_optimizer(optimizer)
        if isinstance(rate, KerasVariable):
            name = f"{unequal_data.LEARNING_RATE} `{optimizer.name}`"
            name = f"{name} ({len(found)})" if name in found else name
            found[name] = tf.cast(tf.convert_to_tensor(rate.value), tf.float32)
    return found
