"""Rows that collectives, which move real numbers alone, move as such: texts, complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def gather_any(
    rows: tf.Tensor,
    counts: tf.Tensor,
    gather_numbers: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Gathers rows of any dtype as `gather` does those of text.

    >>> pairs = tf.constant([1 + 2j, 3j], tf.complex64)
    >>> gather_any(pairs, tf.constant([2]), lambda rows, counts: rows).numpy().tolist()
    [(1+2j), 3j]
    """
    if rows.dtype == tf.string:
        return gather(rows, counts, gather_numbers)
    if rows.dtype.is_complex:
        real = tf.bitcast(rows, rows.dtype.real_dtype)
        return tf.bitcast(gather_numbers(real, counts), rows.dtype)
    return gather_numbers(rows, counts)


def gather(
    rows: tf.Tensor,
    counts: tf.Tensor,
    gather_numbers: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Gathers rows of strings: first the lengths, then the bytes of all, end to end.

    Args:
      rows: The rank's strings, of any number of axes; the rows are those of axis 0.
      counts: The number of rows of each rank.
      gather_numbers: Gathers rows of numbers by such counts.

    >>> text = tf.constant(["ab", "", "c"])
    >>> gather(text, tf.constant([3]), lambda rows, counts: rows).numpy().tolist()
    [b'ab', b'', b'c']
    """
    shape = tf.shape(rows)
    lengths = gather_numbers(tf.reshape(tf.strings.length(rows), [shape[0], -1]), counts)
    per_rank = tf.reduce_sum(
        tf.RaggedTensor.from_row_lengths(lengths, tf.cast(counts, tf.int64)), axis=[1, 2]
    )
    joined = tf.strings.reduce_join(tf.reshape(rows, [-1]))
    own = tf.io.decode_raw(joined, tf.uint8)
    characters = gather_numbers(own, tf.reshape(per_rank, [-1]))
    # Each byte becomes a string of one character, and those of a text are joined again.
    single = tf.gather(
        tf.constant([bytes([code]) for code in range(256)]), tf.cast(characters, tf.int32)
    )
    texts = tf.strings.reduce_join(
        tf.RaggedTensor.from_row_lengths(single, tf.reshape(lengths, [-1])), axis=-1
    )
    total = tf.reduce_sum(counts)
    return tf.ensure_shape(
        tf.reshape(texts, tf.concat([total[tf.newaxis], shape[1:]], 0)), [None, *rows.shape[1:]]
    )
