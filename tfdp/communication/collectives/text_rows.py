"""Rows that collectives, which move real numbers alone, move as such: texts, complex numbers."""

from collections.abc import Callable

import tensorflow as tf


def gather_any(
    rows: tf.Tensor,
    counts: tf.Tensor | None,
    gather_numbers: Callable[[tf.Tensor, tf.Tensor | None], tf.Tensor],
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
    counts: tf.Tensor | None,
    gather_numbers: Callable[[tf.Tensor, tf.Tensor | None], tf.Tensor],
) -> tf.Tensor:
    """Gathers rows of strings: first the lengths, then the bytes of all, end to end.

    Args:
      rows: The rank's strings, of any number of axes; the rows are those of axis 0.
      counts: The number of rows of each rank; None where `gather_numbers` needs none.
      gather_numbers: Gathers rows of numbers by such counts.

    >>> text = tf.constant(["ab", "", "c"])
    >>> gather(text, tf.constant([3]), lambda rows, counts: rows).numpy().tolist()
    [b'ab', b'', b'c']
    """
    shape = tf.shape(rows)
    flat = tf.reshape(tf.strings.length(rows), [shape[0], tf.reduce_prod(shape[1:])])
    lengths = gather_numbers(flat, counts)
    if counts is not None:
        of_ranks = tf.RaggedTensor.from_row_lengths(lengths, tf.cast(counts, tf.int64))
        counts = tf.reshape(tf.reduce_sum(of_ranks, axis=[1, 2]), [-1])
    joined = tf.strings.reduce_join(tf.reshape(rows, [-1]))
    own = tf.io.decode_raw(joined, tf.uint8)
    characters = gather_numbers(own, counts)
    # Each byte becomes a string of one character, and those of a text are joined again.
    single = tf.gather(
        tf.constant([bytes([code]) for code in range(256)]), tf.cast(characters, tf.int32)
    )
    texts = tf.strings.reduce_join(
        tf.RaggedTensor.from_row_lengths(single, tf.reshape(lengths, [-1])), axis=-1
    )
    whole = tf.reshape(texts, tf.concat([tf.shape(lengths)[:1], shape[1:]], 0))
    return tf.ensure_shape(whole, [None, *rows.shape[1:]])
