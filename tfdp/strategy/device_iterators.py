"""A hook that turns autotuning off in TensorFlow's iterators on the replicas' devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdp.hooks import hook
from tfdp.strategy._tensorflow import multi_device_iterator_ops
from tfdp.strategy.input_batches import without_autotuning


@hook(multi_device_iterator_ops, "_create_device_dataset")
def create_device_dataset(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Turns tf.data's autotuning off in the iterators that TensorFlow makes for each device.

    When an iterator is collected, it wakes its autotuning thread before it marks itself as
    cancelled. If the thread falls asleep again in between, the collector waits for it for up to a
    minute, and `fit` stands still between epochs. The iterators on the devices only fetch into a
    buffer of fixed size, so they have nothing to tune; and since their cancelling is slow, the race
    is lost often. While the hooks are in place, a stock strategy's iterators gain as much.
    """
    return without_autotuning(original(*args, **kwargs))
