"""BatchNormalization by the moments of the global batch, or of each replica's own rows.

Synchronized layers in `strategy.run` compute the global batch's moments in two passes. Plain layers
under `batch_normalization="per_replica"` normalize by their replica's moments; moving statistics
take the mean of the replicas' moments by their examples. By default plain layers are part of the
program, in which `partition.rules.reductions` makes the moments those of the global batch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import nn, reduction_axes
from tfdp.keras.replica_step import current
from tfdp.partition import PerReplicaRegion, normalization


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
        return means_of(original(self, inputs, mask))
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


@dataclasses.dataclass
class _Normalizing:
    """A call of a layer: its region, and the replica's own moments, once they are computed."""

    region: PerReplicaRegion
    moments: tuple[tf.Tensor, tf.Tensor] | None = None


def _current() -> _Normalizing | None:
    """Returns the call of a layer that is traced."""
    found = one_device.program().normalizing
    return found if isinstance(found, _Normalizing) else None


def is_plain(layer: keras.Layer) -> bool:
    """Returns whether a layer is one that `batch_normalization` says the moments of.

    One with `renorm` corrects a batch's moments by those of many, and has the whole batch's.
    """
    kind = keras.layers.BatchNormalization
    return isinstance(layer, kind) and not (layer.synchronized or getattr(layer, "renorm", False))


@hook(keras.layers.BatchNormalization, "call")
def call(
    original: Callable[..., Any],
    self: keras.layers.BatchNormalization,
    inputs: Any,
    training: bool | None = None,
    mask: Any = None,
) -> Any:
    """Normalizes by the whole batch's moments, or by those of what a replica has."""
    if not (training and self.trainable and is_plain(self) and one_device.is_traced()):
        return original(self, inputs, training=training, mask=mask)
    if not one_device.program().moments_are_per_replica:
        with normalization():
            return original(self, inputs, training=training, mask=mask)
    region = PerReplicaRegion(tf.convert_to_tensor(inputs))
    mask = None if mask is None else region.rows_in(mask)
    with one_device.normalizing(_Normalizing(region)):
        return original(self, region.rows, training=training, mask=mask)


def means_of(moments: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what the layer is given for the moments that it computed: means by examples."""
    normalizing = _current()
    if normalizing is None:
        return moments
    normalizing.moments = moments
    mean, variance = map(normalizing.region.mean_out, moments)
    return mean, variance


@hook(nn, "batch_normalization")
def batch_normalization(
    original: Callable[..., Any],
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    axis: int,
    offset: tf.Tensor | None = None,
    scale: tf.Tensor | None = None,
    epsilon: float = 1e-3,
) -> Any:
    """Normalizes by the replica's own moments in a layer that has computed them."""
    normalizing = _current()
    if normalizing is None or normalizing.moments is None:
        return original(x, mean, variance, axis, offset, scale, epsilon)
    region = normalizing.region
    offset, scale = (None if each is None else region.weight_in(each) for each in (offset, scale))
    return region.rows_out(original(x, *normalizing.moments, axis, offset, scale, epsilon))
