"""The hooks that let metrics count values of the whole batch, which every replica has, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter.losses.coupling import is_of_whole_batch, weights_of_whole_batch
from tfdp.keras_adapter.step import Step, current


def _weighing_whole(metric: type[keras.Metric]) -> None:
    @hook(metric, "update_state")
    def update_state(
        original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Adds values of the whole batch once: each replica adds its fraction of their weight."""
        step = current()
        if step is None or not is_of_whole_batch(step, values):
            return original(self, values, sample_weight)
        fraction = _fraction(step, self.dtype)
        weight: Any = 1.0 if sample_weight is None else tf.convert_to_tensor(sample_weight)
        if sample_weight is None or weight.shape.rank == 0:
            weight = tf.fill(tf.shape(values), tf.cast(weight, self.dtype) * fraction)
        else:
            weight = tf.cast(weights_of_whole_batch(step, weight), self.dtype) * fraction
        return original(self, values, weight)


_weighing_whole(keras.metrics.Mean)
_weighing_whole(keras.metrics.Sum)


def _fraction(step: Step, dtype: Any) -> tf.Tensor:
    assert step.share is not None
    return tf.cast(step.share.fraction, dtype)
