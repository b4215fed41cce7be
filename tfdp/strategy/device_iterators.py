"""TensorFlow's iterators on the replicas' devices, which have nothing to tune, do not autotune."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdp.hooks import hook
from tfdp.strategy._tensorflow import multi_device_iterator_ops
from tfdp.strategy.input_batches import without_autotuning


@hook(multi_device_iterator_ops, "_create_device_dataset")
def create_device_dataset(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Turns tf.data's autotuning off in the iterators that TensorFlow makes for each device.

    An iterator that is collected wakes its autotuning thread before it says that it is over; where
    the thread then sleeps again, who collects it waits for it, a minute at most: `fit` would stand
    still between epochs. Those on the devices only fetch, into a buffer of fixed size, and their
    cancelling takes long enough for this to happen often. A stock strategy's iterators gain as
    much, as long as the hooks are in place.
    """
    return without_autotuning(original(*args, **kwargs))
