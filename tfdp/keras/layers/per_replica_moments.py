"""Plain BatchNormalization under `batch_normalization="per_replica"`: by each replica's own rows.

Moving statistics take the mean of the replicas' moments by their examples.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.communication.replicas import one_device
from tfdp.keras._keras import nn
from tfdp.partition import PerReplicaRegion, normalization


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
