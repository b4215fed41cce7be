"""What the steps of a compiled model have been given, and how long they waited for it."""

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class Meter:
    """Counts the batches that steps take, which the host hands out one after the other.

    Attributes:
      steps: The number of batches.
      examples: The number of their examples: rows of each batch's first array.
      waited_seconds: How long steps waited for them.

    >>> meter = Meter()
    >>> _ = list(meter.counted(iter([(tf.ones([4, 2]), tf.ones([4])), (tf.ones([3, 2]),)])))
    >>> meter.steps, meter.examples
    (2, 7)
    """

    def __init__(self) -> None:
        self.steps = self.examples = 0
        self.waited_seconds = 0.0

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields batches, which are counted as they are taken."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.waited_seconds += time.perf_counter() - began
            self.steps += 1
            self.examples += _rows(batch)
            yield batch


def _rows(batch: Any) -> int:
    whole = getattr(batch, "size", None)  # of one of which this process has its own rows
    if isinstance(whole, int):
        return whole
    sizes: Iterator[Any] = (getattr(leaf, "shape", ()) for leaf in tf.nest.flatten(batch))
    return next((int(shape[0]) for shape in sizes if len(shape)), 0)
