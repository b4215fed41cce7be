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
    pieces = [_pieces(gradient) for gradient in gradients]
    flat = [piece for each in pieces for piece in each]
    alike = [_rows_are_alike(piece) for piece in flat]
    own = [g.values if a else g for g, a in zip(flat, alike, strict=True)]
    sums = iter(step.sum_prepared(own, prepare, watch))
    found = [
        tf.IndexedSlices(next(sums), g.indices, g.dense_shape) if a else next(sums)
        for g, a in zip(flat, alike, strict=True)
    ]
    rest = iter(found)
    return [_together([next(rest) for _ in each]) for each in pieces]


def _pieces(gradient: Any) -> list[Any]:
    """A gradient, or, where some rows depend on the batch and some do not, each by itself.

    The gradient of a table that is read several times has the rows of each reading in turn.
    """
    if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.indices):
        return [gradient]
    values, indices = gradient.values.op, gradient.indices.op
    if not (values.type == indices.type == "ConcatV2") or len(values.inputs) != len(indices.inputs):
        return [gradient]
    read = zip(values.inputs[:-1], indices.inputs[:-1], strict=True)
    pieces = [tf.IndexedSlices(*each, gradient.dense_shape) for each in read]
    return pieces if any(map(_rows_are_alike, pieces)) else [gradient]


def _together(pieces: list[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    values, indices = (
        tf.concat([getattr(piece, name) for piece in pieces], axis=0)
        for name in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, pieces[0].dense_shape)


def _rows_are_alike(gradient: Any) -> bool:
    """Whether the graph shows slices to have the same rows in the same order on all replicas."""
    if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.indices):
        return False
    return origins([gradient.indices]) is Origin.ALIKE
