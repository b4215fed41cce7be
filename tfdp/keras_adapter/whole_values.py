"""Values of the whole batch, which every replica has: they count once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter._keras import losses
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.origins import Origin, origins
from tfdp.keras_adapter.step import Step, current
from tfdp.keras_adapter.whole_batch import whole_batch

_OWN = Origin.DATA | Origin.RANDOM | Origin.LOCAL


@hook(losses, "reduce_weighted_values")
def reduce_weighted_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """The loss from values for each example of the whole batch, with all of its weights."""
    step = current()
    if step is None or not _are_whole(step, values):
        return original(values, sample_weight, mask, reduction, dtype)
    sample_weight, mask = whole_batch((sample_weight, mask))
    if reduction == "sum":  # of means numerator and denominator are both summed over replicas
        values = values * _fraction(step, values.dtype)
    return original(values, sample_weight, mask, reduction, dtype)


def _weighing_whole(metric: type[keras.Metric]) -> None:
    @hook(metric, "update_state")
    def update_state(
        original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Adds values of the whole batch once: each replica its fraction of them."""
        step = current()
        if step is None or not _are_whole(step, values):
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


def _are_whole(step: Step, values: Any) -> bool:
    """Whether these are no rows of the share's examples, but what all replicas have together."""
    if step.share is None or step.num_replicas == 1 or not isinstance(values, tf.Tensor):
        return False
    if not values.shape.rank or values.shape[0] == (step.share.rows or -1):
        return False
    found = origins([values])
    return bool(found & Origin.TOGETHER) and not found & _OWN
