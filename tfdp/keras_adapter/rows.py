"""Sums of gradients over replicas: of sparse ones, by what is known of their rows.

The rows of `tf.IndexedSlices` are gathered, as one device has them, for an optimizer such as Adam
squares each by itself. Where the rows do not depend on the batch, as an embedding of positions or a
table that is read at constant places looks them up, one device has them once, with values that are
summed over the batch: there the values of replicas are summed in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.origins import Origin, origins
from tfdp.keras_adapter.step import Step
from tfdp.recording import Watch


def summed(
    step: Step,
    gradients: Sequence[Any],
    prepare: Callable[[tf.Tensor], tf.Tensor] | None,
    watch: Watch | None,
) -> list[Any]:
    """The sums of `gradients` over replicas, in as few collectives as can be.

    Args:
      step: The replica's.
      gradients: Tensors and IndexedSlices.
      prepare: Applied to each buffer before it is sent.
      watch: Is told of each bucket.
    """
    alike = [_rows_are_alike(gradient) for gradient in gradients]
    own = [g.values if a else g for g, a in zip(gradients, alike, strict=True)]
    sums = step.sum_prepared(own, prepare, watch)
    return [
        tf.IndexedSlices(total, g.indices, g.dense_shape) if a else total
        for total, g, a in zip(sums, gradients, alike, strict=True)
    ]


def _rows_are_alike(gradient: Any) -> bool:
    """Whether the graph shows slices to have the same rows in the same order on all replicas."""
    if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.indices):
        return False
    return origins([gradient.indices]) is Origin.ALIKE
