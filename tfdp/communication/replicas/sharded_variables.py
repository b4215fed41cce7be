"""Variables of which each replica holds a part: which they are, and which could be."""

from typing import Protocol, runtime_checkable

import tensorflow as tf

from tfdp.base.sharding import Sharding


@runtime_checkable
class HasLayout(Protocol):
    """A variable of TensorFlow whose layout a compiler chooses.

    Attributes:
      path: The path that Keras knows it by.
      follows: The weight that an optimizer keeps it for, whose layout it has; None: none.
    """

    path: str
    follows: object


def sharding_of(variable: object) -> Sharding | None:
    """Returns how a variable is cut, TensorFlow's or Keras' around it; None: replicas have it all.

    >>> import keras
    >>> sharding_of(tf.Variable([1.0, 2.0])) is sharding_of(keras.Variable([1.0, 2.0])) is None
    True
    """
    for held in (variable, getattr(variable, "value", None)):
        cut = getattr(held, "cut", None)
        if isinstance(cut, Sharding):
            return cut
    return None


def can_be_sharded(variable: tf.Variable, replicas: int) -> bool:
    """Returns whether a variable has numbers to be updated, and an axis with a part for each.

    >>> can_be_sharded(tf.Variable([1.0, 2.0]), 2), can_be_sharded(tf.Variable([1, 2]), 2)
    (True, False)
    >>> can_be_sharded(tf.Variable([1.0, 2.0]), 3)
    False
    """
    shape = tf.TensorShape(variable.shape)
    if not (tf.as_dtype(variable.dtype).is_floating and shape.is_fully_defined()):
        return False
    return 0 not in shape and max(shape, default=0) >= replicas
