"""TensorFlow's iterators on the replicas' devices, which have nothing to tune, do not autotune."""

from __future__ import annotations

import functools
from typing import Any

from tfdp.strategy._tensorflow import multi_device_iterator_ops
from tfdp.strategy.input_batches import without_autotuning


def stop_autotuning() -> None:
    """Turns tf.data's autotuning off in the iterators that TensorFlow makes for each device.

    An iterator that is collected wakes its autotuning thread before it says that it is over; where
    the thread then sleeps again, who collects it waits for it, a minute at most: `fit` would stand
    still between epochs. Those on the devices only fetch, into a buffer of fixed size, and their
    cancelling takes long enough for this to happen often. It holds for the whole process: a stock
    strategy's iterators gain as much. Making a strategy does it.

    >>> stop_autotuning()
    >>> stop_autotuning()  # nothing more
    """
    create = multi_device_iterator_ops._create_device_dataset
    if getattr(create, "tfdp_stops_autotuning", False):
        return

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        return without_autotuning(create(*args, **kwargs))

    created.tfdp_stops_autotuning = True  # type: ignore[attr-defined]
    multi_device_iterator_ops._create_device_dataset = created
