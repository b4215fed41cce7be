"""Variables made inside a replica, by a model or an optimizer that is built lazily."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import hook
from tfdp.keras._keras import Variable
from tfdp.keras.replica_step import current


@hook(Variable, "_initialize")
def initialize(original: Callable[..., Any], self: Variable, value: Any) -> None:
    """Makes a variable for all replicas, in the first one; the others find the layer built."""
    step = current()
    if step is None:
        return original(self, value)
    with tf.init_scope():
        return original(self, value)
