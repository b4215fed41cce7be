"""The hook of `Equalization`, whose result for one image depends on the others of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter.step import current


@hook(keras.layers.Equalization, "_custom_histogram_fixed_width")
def histogram(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the histogram of the whole batch: Keras equalizes all images of a batch by one.

    `RandAugment` comes here as well, where it draws equalization.
    """
    counts = original(self, *args, **kwargs)
    step = current()
    if step is None or step.num_replicas == 1:
        return counts
    if step.compiling:
        raise RuntimeError(
            "Equalization must run outside XLA on CPU, where XLA has no collective, but the model "
            "is compiled with jit_compile=True. Use jit_compile=False, or equalize in the dataset."
        )
    return step.sum([tf.convert_to_tensor(counts)])[0]
