"""Sums of `tf.IndexedSlices`, such as gradients of embeddings: row by row, or merged."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.communication.engines import Engine


def size_bytes(slices: tf.IndexedSlices) -> tf.Tensor:
    """Returns the bytes of the rows and their indices, an int64 scalar.

    >>> int(size_bytes(tf.IndexedSlices(tf.ones([3, 2]), tf.constant([0, 1, 0]))))
    36
    """
    values, indices = slices.values, slices.indices
    return (
        tf.size(values, tf.int64) * values.dtype.size
        + tf.size(indices, tf.int64) * indices.dtype.size
    )


@dataclasses.dataclass(frozen=True)
class Announced:
    """The rows of which a rank has values, with how many each rank has.

    Attributes:
      indices: Of the rank's slices.
      unique: Each row once, and for each index its place among these; None: rows are not merged.
      counts: The number of rows that each rank sends, int32, [n].
    """

    indices: tf.Tensor
    unique: tuple[tf.Tensor, tf.Tensor] | None
    counts: tf.Tensor


def announce(
    engine: Engine, indices: Sequence[tf.Tensor], merge_rows: bool = False
) -> list[Announced]:
    """Tells all ranks how many rows each has of several tables, in one collective.

    Args:
      engine: The collectives between all ranks.
      indices: Those of the caller's slices, a vector for each table.
      merge_rows: Whether equal rows are summed before they travel.
    """
    unique = [tuple(tf.unique(each)) if merge_rows else None for each in indices]
    sent = [one[0] if one else each for one, each in zip(unique, indices, strict=True)]
    counts = tf.stack([tf.size(each) for each in sent])[tf.newaxis]
    if engine.world_size > 1:
        counts = engine.all_gather(counts, tuple(range(engine.world_size)))
    of_tables = tf.unstack(counts, len(indices), axis=1)
    return [Announced(*each) for each in zip(indices, unique, of_tables, strict=True)]


def merged(
    slices: tf.IndexedSlices, unique: tuple[tf.Tensor, tf.Tensor] | None = None
) -> tf.IndexedSlices:
    """Sums the values of equal rows: each row comes once, in the order of the rows' first values.

    Args:
      slices: With numbers as values.
      unique: `tf.unique(slices.indices)`, where it is known.

    >>> slices = tf.IndexedSlices(tf.constant([1.0, 2.0, 3.0]), tf.constant([7, 4, 7]))
    >>> one_each = merged(slices)
    >>> one_each.indices.numpy().tolist(), one_each.values.numpy().tolist()
    ([7, 4], [4.0, 2.0])
    """
    rows, positions = tf.unique(slices.indices) if unique is None else unique
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def gather(engine: Engine, slices: tf.IndexedSlices, announced: Announced) -> tf.IndexedSlices:
    """Concatenates all ranks' rows, in the order of ranks.

    Args:
      engine: The collectives between all ranks.
      slices: The caller's slices.
      announced: The same rows.
    """
    everyone = tuple(range(engine.world_size))
    if len(everyone) == 1:
        return slices
    return tf.IndexedSlices(
        engine.gather_counted(slices.values, announced.counts, everyone),
        engine.gather_counted(slices.indices, announced.counts, everyone),
        slices.dense_shape,
    )


def all_reduce(
    engine: Engine,
    slices: tf.IndexedSlices,
    announced: Announced,
    sum_dense: Callable[[tf.Tensor], tf.Tensor],
) -> tf.IndexedSlices:
    """Returns the sum of all ranks' slices: each one's merged rows in order, the same bits on all.

    Where these are more bytes than a dense all-reduce of the whole sends, the whole is sent, and
    each row comes once. The step decides, by the most rows that a rank has.

    Cost: n times the rows of the rank with the most, or the dense all-reduce.

    Args:
      engine: The collectives between all ranks.
      slices: The caller's slices, with numbers as values.
      announced: The same rows, merged.
      sum_dense: Sums a tensor of known shape over all ranks.
    """
    world_size = engine.world_size
    if world_size == 1:
        return slices
    own = merged(slices, announced.unique)
    shape = _static_shape(slices)
    if shape is None:
        return gather(engine, own, announced)

    def gathered() -> tuple[tf.Tensor, tf.Tensor]:
        rows = gather(engine, own, announced)
        return rows.values, rows.indices

    def dense() -> tuple[tf.Tensor, tf.Tensor]:
        scattered = tf.scatter_nd(own.indices[:, tf.newaxis], own.values, tf.cast(shape, indices))
        summed = sum_dense(tf.ensure_shape(scattered, shape))
        return summed, tf.range(shape[0], dtype=indices)

    indices = own.indices.dtype
    row_bytes = own.values.dtype.size * (tf.TensorShape(shape[1:]).num_elements() or 1)
    sent_as_rows = tf.cast(tf.reduce_max(announced.counts), tf.int64) * (row_bytes + indices.size)
    dense_is_less = sent_as_rows * world_size > 2 * shape[0] * row_bytes
    return tf.IndexedSlices(*tf.cond(dense_is_less, dense, gathered), slices.dense_shape)


def _static_shape(slices: tf.IndexedSlices) -> list[int] | None:
    """Returns the shape of the whole, if it is known when the graph is built."""
    known = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    if known is None or not slices.values.shape[1:].is_fully_defined():
        return None
    return [int(known[0]), *slices.values.shape[1:]]
