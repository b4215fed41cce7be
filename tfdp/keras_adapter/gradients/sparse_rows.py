"""Sums of gradients over replicas; how sparse ones are summed depends on their rows.

Rows of `tf.IndexedSlices` that the examples chose are gathered and not merged: one device has each
of them, and an optimizer such as Adam squares each by itself. Rows that do not depend on the batch,
as of an embedding of positions or a table that is read at constant places, are on one device once,
with values summed over the batch. The replicas' values of such rows are added up place by place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.collectives import slices
from tfdp.keras_adapter.gradients.row_kinds import Lookups, Rows
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.variables.effects import zero_if
from tfdp.recording import Watch
from tfdp.replicas import Prepare, Value


def summed(
    step: Step,
    gradients: Sequence[Value],
    prepare: Prepare | None,
    watch: Watch | None,
    compress: bool,
) -> list[Value]:
    """Returns the sums of `gradients` over replicas, made in as few collectives as can be.

    Args:
      step: The replica's step.
      gradients: Tensors and IndexedSlices.
      prepare: A function that is applied to each buffer before it is sent.
      watch: A listener that is told of each bucket.
      compress: Whether the strategy's `compression` is used.
    """
    lookups = Lookups(step)
    pieces = [lookups.pieces(gradient) for gradient in gradients]
    flat = [piece for each in pieces for piece in each]
    rows = [lookups.rows_of(piece) for piece in flat]
    sent = [_sent(*each) for each in zip(flat, rows, strict=True)]
    sums = step.sum_prepared(sent, prepare, watch, compress)
    found = (_received(*each) for each in zip(sums, flat, rows, strict=True))
    return [_together(each, found) for each in pieces]


def _sent(piece: Value, rows: Rows) -> Value:
    if rows is Rows.ALIKE:
        return piece.values
    if rows is not Rows.IN_PLACES:
        return piece
    places = tf.range(tf.size(piece.indices), dtype=piece.indices.dtype)
    indices = tf.stack([piece.indices, places], axis=1)
    return tf.IndexedSlices(piece.values, indices, piece.dense_shape)


def _received(total: Value, piece: Value, rows: Rows) -> Value:
    if rows is Rows.ALIKE:
        return tf.IndexedSlices(total, piece.indices, piece.dense_shape)
    if rows is Rows.ONCE:
        return slices.merged(total)
    return _in_places(total) if rows is Rows.IN_PLACES else total


def _in_places(gathered: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values that have the same place on their replicas, and so must have the same row."""
    indices, places = tf.unstack(gathered.indices, axis=1)
    size = tf.reduce_max(tf.concat([places, [-1]], axis=0)) + 1
    rows = tf.math.unsorted_segment_max(indices, places, size)
    zero = zero_if(
        tf.reduce_all(indices == tf.gather(rows, places)),
        "Rows of a table that do not depend on the batch's values must be the same on all replicas,"
        " but some differ. Look them up by values of the batch, or give `tf.gather` a dense tensor,"
        " `tf.gather(1.0 * table, rows)`.",
    )
    values = tf.math.unsorted_segment_sum(gathered.values, places, size)
    return tf.IndexedSlices(values, rows + tf.cast(zero, rows.dtype), gathered.dense_shape)


def _together(pieces: list[Value], sums: Iterator[Value]) -> Value:
    """Joins the next sums, those of a gradient's pieces, into the sum of the gradient."""
    found = [next(sums) for _ in pieces]
    if len(found) == 1:
        return found[0]
    values, indices = (
        tf.concat([getattr(piece, name) for piece in found], axis=0)
        for name in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, found[0].dense_shape)
