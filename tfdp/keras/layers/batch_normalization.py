"""Synchronized BatchNormalization, with the moments of the global batch from two passes."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import nn, reduction_axes
from tfdp.keras.layers import per_replica_moments
from tfdp.keras.replica_step import current


@hook(nn, "_compute_moments_sync")
def compute_moments_sync(
    original: Callable[..., Any], x: tf.Tensor, axes: Sequence[int], keepdims: bool
) -> Any:
    """Returns the mean and variance of `x` over `axes` and over all replicas.

    1. Sum `x` and the number of entries over the replicas. The mean is their quotient.
    2. Sum the squared distances from that mean. Keras' E[x^2] - E[x]^2 is a difference of large
       numbers where the mean is large, and cancels the variance.
    """
    step = current()
    if step is None:
        if one_device.is_traced():  # as without `synchronized`: the batch is the whole batch
            return nn.moments(x, axes, keepdims)
        return original(x, axes, keepdims)
    axes = [axis % x.shape.rank for axis in ([axes] if isinstance(axes, int) else axes)]
    local_sum = tf.reduce_sum(x, axes, keepdims=True)
    entries = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), x.dtype)
    total, count = step.replicas.sum([local_sum, tf.zeros_like(local_sum) + entries])
    mean = tf.math.divide_no_nan(total, count)
    (distances,) = step.replicas.sum([tf.reduce_sum(tf.square(x - mean), axes, keepdims=True)])
    variance = tf.math.divide_no_nan(distances, count)
    if keepdims:
        return mean, variance
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


@hook(keras.layers.BatchNormalization, "_moments")
def masked_moments(
    original: Callable[..., Any], self: keras.layers.BatchNormalization, inputs: Any, mask: Any
) -> Any:
    """Returns the moments of the unmasked entries over all replicas; Keras' cover one replica."""
    step = current()
    if step is None or mask is None or not self.synchronized:
        return per_replica_moments.means_of(original(self, inputs, mask))
    axes = reduction_axes(self)
    valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
    kept = tf.where(valid, inputs, tf.zeros_like(inputs))
    weights = tf.cast(valid, inputs.dtype)
    total, count = step.replicas.sum(
        [tf.reduce_sum(each, axes, keepdims=True) for each in (kept, weights)]
    )
    # Keras adds epsilon to the count under a mask, and so it is done here.
    mean = total / (count + keras.config.epsilon())
    squares = tf.where(valid, tf.square(inputs - mean), tf.zeros_like(inputs))
    (distances,) = step.replicas.sum([tf.reduce_sum(squares, axes, keepdims=True)])
    return tf.squeeze(mean), tf.squeeze(distances / (count + keras.config.epsilon()))
