"""Limits to what is read and mapped beforehand, within a number of bytes."""

import os
from typing import Any

import tensorflow as tf


def example_bytes(element_spec: Any) -> int | None:
    """Returns the bytes of one example; None where shapes vary, and for strings.

    >>> example_bytes((tf.TensorSpec([28, 28], tf.uint8), tf.TensorSpec([], tf.int32)))
    788
    """
    total = 0
    for spec in tf.nest.flatten(element_spec):
        fixed = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not fixed or spec.dtype in (tf.string, tf.variant, tf.resource):
            return None
        total += spec.shape.num_elements() * spec.dtype.size
    return total


def batches_within(memory_bytes: int, batch_bytes: int) -> tuple[int, int]:
    """Returns the most batches that may be made at once, and the most that may wait for the steps.

    Batches in the making and waiting batches share the memory, half each; one of each must be
    possible.

    Args:
      memory_bytes: The bytes for both.
      batch_bytes: The bytes of one process' part of a batch.

    >>> batches_within(10_000_000, 1_000_000)[1]
    5
    """
    half = max(1, memory_bytes // 2 // max(1, batch_bytes))
    return min(half, os.cpu_count() or 1), half


def check_buffer(buffer: int, element_spec: Any, memory_bytes: int | None) -> None:
    """Raises ValueError if a buffer of so many examples takes more than `memory_bytes`."""
    size = example_bytes(element_spec)
    if memory_bytes is None or size is None or buffer * size <= memory_bytes:
        return
    raise ValueError(
        f"The examples that `shuffle` or `cache` holds must fit into `memory_bytes`, but {buffer} "
        f"of {size} bytes take {buffer * size} bytes and it is {memory_bytes}. Use "
        f"`shuffle_buffer={max(1, memory_bytes // size)}` and no `cache`, or "
        f"`memory_bytes={buffer * size}`."
    )
