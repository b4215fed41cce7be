"""Losses: numerators and denominators of the global batch.

Within a step of Keras' trainer the value of each loss is that of the global batch, the same on
every replica, and its gradient is the replica's term of the global one: the sum over replicas is
what one device computes, for any mask, weights, reduction and split of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._keras import TensorFlowTrainer, global_state, losses
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.provenance import mark_global
from tfdp.keras_adapter.step import Share, Step, at_least_float32, current

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@hook(losses, "reduce_values")
def reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str | None = "sum_over_batch_size",
) -> Any:
    """The loss over the global batch from this replica's `values`."""
    step = current()
    if step is None or step.share is None or reduction in (None, "none"):
        return original(values, sample_weight, reduction)
    if values.shape.rank == 0:
        return _raw(step.share, values)
    weighted = reduction == "mean_with_sample_weight" and sample_weight is not None
    numerator = tf.reduce_sum(values)
    if step.compiling:
        return _reduce_in_xla(step, values, numerator, reduction, weighted)
    divisor = tf.reduce_sum(sample_weight) if weighted else tf.size(values)
    dtype = at_least_float32(values.dtype)
    total, total_divisor = _sums(step, [numerator, divisor], dtype)
    scale = tf.ones([], dtype)
    if reduction in _MEANS:
        scale = tf.math.divide_no_nan(scale, total_divisor)
    return _global_value(step, numerator, total * scale, scale)


@hook(losses, "apply_mask")
def apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: str | None
) -> Any:
    """Weights for a mask: those of all valid entries of the global batch add up to its size."""
    step = current()
    if step is None or step.share is None:
        return original(sample_weight, mask, dtype, reduction)
    if mask is None or reduction not in ("mean", "sum_over_batch_size"):
        return original(sample_weight, mask, dtype, reduction)
    precise = at_least_float32(dtype)
    valid = tf.cast(mask, precise)
    _forbid_in_xla(step, "a masked loss")
    size, total_valid = _sums(step, [tf.size(valid), tf.reduce_sum(valid)], precise)
    weight = tf.cast(valid * tf.math.divide_no_nan(size, total_valid), dtype)
    if sample_weight is None:
        return weight
    weight, sample_weight = losses.squeeze_or_expand_to_same_rank(
        weight, tf.cast(sample_weight, dtype)
    )
    return sample_weight * weight


@hook(losses, "scale_loss_for_distribution")
def scale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Losses are those of the global batch already: nothing to divide."""
    step = current()
    return value if step is not None and step.share is not None else original(value)


@hook(losses, "unscale_loss_for_distribution")
def unscale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Losses are those of the global batch already: nothing to multiply."""
    step = current()
    return value if step is not None and step.share is not None else original(value)


@hook(TensorFlowTrainer, "_aggregate_additional_loss")
def aggregate_additional_loss(
    original: Callable[..., Any], self: TensorFlowTrainer, loss: Any
) -> Any:
    """What `add_loss` and regularizers give: a mean over examples, or free of them."""
    step = current()
    if step is None or step.share is None:
        return original(self, loss)
    return _raw(step.share, original(self, loss))


def _sums(step: Step, values: list[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
    packed = tf.stack([tf.stop_gradient(tf.cast(value, dtype)) for value in values])
    (summed,) = step.meet([packed])
    return tf.unstack(summed, num=len(values))


def _global_value(
    step: Step, numerator: tf.Tensor, value: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """`value` forward; backward `scale` into `numerator`."""
    share = step.share
    assert share is not None
    inside_a_layer = _inside_a_layer()
    value = tf.cast(value, numerator.dtype)

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        # Somebody multiplies by a factor later: `apply`, or `add_loss` inside a layer.
        factor = scale
        if share.scaled_at_apply:
            factor = tf.math.divide_no_nan(scale, tf.cast(share.applied, scale.dtype))
        elif inside_a_layer:
            factor = tf.math.divide_no_nan(scale, tf.cast(share.fraction, scale.dtype))
        return upstream * tf.cast(factor, upstream.dtype)

    @tf.custom_gradient
    def attach(numerator: tf.Tensor) -> Any:
        return tf.identity(value), backward

    result = attach(numerator)
    return mark_global(result)


def _raw(share: Share, value: tf.Tensor) -> tf.Tensor:
    """A mean over this replica's examples: weighted by them backward, zero where there are none."""
    factor = tf.constant(1.0) if share.scaled_at_apply else share.fraction

    @tf.custom_gradient
    def weigh(value: tf.Tensor) -> Any:
        return share.select(value), lambda upstream: share.select(
            upstream * tf.cast(factor, upstream.dtype)
        )

    return weigh(value)


def _reduce_in_xla(
    step: Step, values: tf.Tensor, numerator: tf.Tensor, reduction: str, weighted: bool
) -> tf.Tensor:
    # XLA has no collective on CPU. Inside a layer `add_loss` weights by examples, which is exact
    # for a mean over all entries; a sum is divided by the weight that will be put on it.
    assert step.share is not None
    if weighted:
        _forbid_in_xla(step, "a loss with reduction 'mean_with_sample_weight'")
    if reduction == "sum":
        divisor = tf.cast(step.share.fraction, numerator.dtype)
    else:
        divisor = tf.cast(tf.size(values), numerator.dtype)
    return tf.math.divide_no_nan(numerator, divisor)


def _forbid_in_xla(step: Step, what: str) -> None:
    if step.compiling:
        raise RuntimeError(
            f"Under `jit_compile=True` on CPU no layer can compute {what}: it needs sums over the "
            "replicas, and XLA has no collective there. Give the loss to `compile(loss=...)`, or "
            "use jit_compile=False."
        )


def _inside_a_layer() -> bool:
    return global_state.get_global_attribute("current_call_ctx") is not None
