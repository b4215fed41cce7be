"""Stateless draws that begin at a later number, without drawing the earlier ones.

TensorFlow's stateless draws fill a tensor in order from Philox, a generator whose groups of numbers
are functions of a counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
doi:10.1145/2063384.2063405). So a replica that knows how many numbers come before its own begins
there. On CPUs and GPUs, compiled by XLA or not, the numbers are the very numbers of
`tf.random.stateless_uniform` and `stateless_normal`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_PHILOX = 1  # tf.random.Algorithm.PHILOX


def uniform(shape: Any, seed: Any, skipped: Any, dtype: tf.DType) -> tf.Tensor:
    """Draws uniform numbers in [0, 1), without the first `skipped` numbers of the draw.

    Args:
      shape: The shape of the result: a list of integers and scalar tensors, or an integer vector.
      seed: An integer vector of length 2, as for `tf.random.stateless_uniform`.
      skipped: How many numbers of the draw are left out, an int64 scalar.
      dtype: A floating dtype.

    Returns:
      A tensor of `shape` and `dtype`: `draw[skipped : skipped + size]` of the flat draw.

    >>> seed = tf.constant([1, 2])
    >>> whole = tf.random.stateless_uniform([6, 5], seed)
    >>> rows = uniform([2, 5], seed, tf.constant(15, tf.int64), tf.float32)
    >>> bool(tf.reduce_all(rows == whole[3:5]))
    True
    """
    draw = functools.partial(tf.raw_ops.StatelessRandomUniformV2, dtype=dtype)
    return _later(draw, shape, seed, skipped, dtype)


def normal(shape: Any, seed: Any, skipped: Any, dtype: tf.DType) -> tf.Tensor:
    """Draws from the standard normal distribution, without the first `skipped` numbers.

    The arguments and the result are those of `uniform`.

    >>> seed = tf.constant([1, 2])
    >>> whole = tf.random.stateless_normal([6, 5], seed)
    >>> rows = normal([2, 5], seed, tf.constant(15, tf.int64), tf.float32)
    >>> bool(tf.reduce_all(rows == whole[3:5]))
    True
    """
    draw = functools.partial(tf.raw_ops.StatelessRandomNormalV2, dtype=dtype)
    return _later(draw, shape, seed, skipped, dtype)


def integers(
    shape: Any, seed: Any, skipped: Any, dtype: tf.DType, minval: Any, maxval: Any
) -> tf.Tensor:
    """Draws integers from `minval` up to, but not including, `maxval`, without the first `skipped`.

    Args:
      shape: The shape of the result, as for `uniform`.
      seed: An integer vector of length 2.
      skipped: How many numbers of the draw are left out, an int64 scalar.
      dtype: `tf.int32` or `tf.int64`.
      minval: The smallest number, a scalar.
      maxval: The end of the range, a scalar.

    >>> seed = tf.constant([1, 2])
    >>> whole = tf.random.stateless_uniform([8], seed, minval=0, maxval=100, dtype=tf.int32)
    >>> some = integers([3], seed, tf.constant(5, tf.int64), tf.int32, 0, 100)
    >>> bool(tf.reduce_all(some == whole[5:]))
    True
    """
    draw = functools.partial(
        tf.raw_ops.StatelessRandomUniformIntV2,
        minval=tf.cast(minval, dtype),
        maxval=tf.cast(maxval, dtype),
    )
    return _later(draw, shape, seed, skipped, dtype)


def _later(
    draw: Callable[..., Any], shape: Any, seed: Any, skipped: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    group = 2 if dtype.size == 8 else 4  # numbers for each value of the counter
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    words = tf.bitcast(counter, tf.int64)  # GPUs cannot add unsigned integers
    low = words[0] + skipped // group
    # As an unsigned number the low word has wrapped around where its sign bit was cleared.
    carry = tf.cast((words[0] < 0) & (low >= 0), tf.int64)
    counter = tf.bitcast(tf.stack([low, words[1] + carry]), tf.uint64)
    size = tf.reduce_prod(tf.cast(tf.convert_to_tensor(shape), tf.int32))
    # The first group may be used in part, which takes one group more. XLA needs sizes that do not
    # depend on `skipped`, so the group is always added.
    groups = (size + group - 1) // group + 1
    drawn = draw(shape=[group * groups], key=key, counter=counter, alg=_PHILOX)
    return tf.reshape(tf.slice(drawn, [tf.cast(skipped % group, tf.int32)], [size]), shape)
