"""Serialized `tf.train.Example`s as tensors, a batch at once."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def spec_of(features: Mapping[str, Any] | None) -> Any:
    """Returns the element spec of records.

    Args:
      features: A dict as for `tf.io.parse_example`, each value a `tf.io.FixedLenFeature`; None for
        the serialized bytes.

    Returns:
      A scalar string, or a dict of `tf.TensorSpec`.

    Raises:
      ValueError: There is no feature, or one has no fixed shape.

    >>> import tensorflow as tf
    >>> spec_of({"label": tf.io.FixedLenFeature([], tf.int64)})
    {'label': TensorSpec(shape=(), dtype=tf.int64, name='label')}
    """
    if features is None:
        return tf.TensorSpec([], tf.string)
    if not isinstance(features, Mapping) or not features:
        raise ValueError(
            "`features` must be a dict of tf.io.FixedLenFeature, or None for the serialized bytes; "
            f"received {features!r}."
        )
    return {name: _spec(name, feature) for name, feature in features.items()}


def parse(serialized: tf.Tensor, features: Mapping[str, Any] | None) -> Any:
    """Parses a batch.

    Args:
      serialized: The serialized examples, strings, shape (k,).
      features: The features that `spec_of` took.

    Returns:
      A nest like `spec_of(features)`, each tensor with a leading axis of k.

    Cost: 1 call of `tf.io.parse_example` for the batch.
    """
    if features is None:
        return serialized
    return tf.io.parse_example(serialized, dict(features))


def _spec(name: str, feature: Any) -> tf.TensorSpec:
    if isinstance(feature, tf.io.FixedLenFeature):
        shape = tf.TensorShape(feature.shape)
        if shape.is_fully_defined():
            return tf.TensorSpec(shape, tf.as_dtype(feature.dtype), name)
    raise ValueError(
        f"The feature {name!r} must be a tf.io.FixedLenFeature with every dimension known, so that "
        f"examples form a batch; received {feature!r}. Use tf.io.FixedLenFeature, or leave "
        "`features` out, and parse each example in `map_fn` by tf.io.parse_single_example and pad "
        "it there."
    )
