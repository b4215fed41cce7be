"""Metrics count values of the whole batch, which every replica has, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter.coupling import is_of_whole_batch
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import Step, current
from tfdp.keras_adapter.whole_batch import whole_batch


def _weighing_whole(metric: type[keras.Metric]) -> None:
    @hook(metric, "update_state")
    def update_state(
        original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Adds values of the whole batch once: each replica its fraction of them."""
        step = current()
        if step is None or not is_of_whole_batch(step, values):
            return original(self, values, sample_weight)
        fraction = _fraction(step, self.dtype)
        if sample_weight is None:
            weight = tf.fill(tf.shape(values), fraction)
        else:
            weight = tf.cast(whole_batch(sample_weight), self.dtype) * fraction
        return original(self, values, weight)


_weighing_whole(keras.metrics.Mean)
_weighing_whole(keras.metrics.Sum)


def _fraction(step: Step, dtype: Any) -> tf.Tensor:
    assert step.share is not None
    return tf.cast(step.share.fraction, dtype)
