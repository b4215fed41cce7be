"""Random numbers differ between replicas, and follow from `keras.utils.set_random_seed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._keras import SeedGenerator
from tfdp.keras_adapter.hooks import hook
from tfdp.keras_adapter.step import current

# Knuth's multiplicative constant: the replicas' seeds are far apart. Replica 0 draws as one device.
_STRIDE = 2654435761


@hook(SeedGenerator, "next")
def next_seed(original: Callable[..., Any], self: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
    """The next seed, offset by the replica; an optimizer's is the same everywhere."""
    step = current()
    if step is None or step.optimizing:
        return original(self, *args, **kwargs)
    with step.having(optimizing=True):  # The generator's own state is the same everywhere.
        seed = original(self, *args, **kwargs)
    if step.rank == 0:
        return seed
    bits = 8 * seed.dtype.size
    offset = step.rank * _STRIDE % 2 ** (bits - 1)
    return seed + tf.constant([offset, 0], seed.dtype)
