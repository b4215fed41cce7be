"""Draws from gamma distributions, by operations that XLA has."""

import tensorflow as tf

# How many candidates are drawn for each number. One is rejected by a chance below 0.05, so all are
# by one of 2e-16; then the number is 0.
_TRIES = 12


def drawn(
    shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, algorithm: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns what `tf.raw_ops.StatelessRandomGammaV3` does, by draws of normals and uniforms.

    As other draws that XLA makes, the numbers are not those of TensorFlow's own kernel. Marsaglia
    and Tsang, A Simple Method for Generating Gamma Variables (2000): of a normal x and a uniform u,
    d (1 + c x)^3 is taken where log u < x^2 / 2 + d (1 - v + log v). Cost: 25 draws for a number,
    of which all are in memory.

    Args:
      shape: The shape of the result, which ends with that of `alpha`.
      key: The key of the generator, [1], uint64.
      counter: Its counter, uint64.
      algorithm: Which generator it is.
      alpha: The shapes of the distributions, whose scale is 1.

    >>> seed = tf.constant([1], tf.uint64), tf.constant([0, 0], tf.uint64), tf.constant(1)
    >>> found = drawn(tf.constant([9, 2]), *seed, tf.constant([0.5, 80.0]))
    >>> found.shape.as_list(), bool(tf.reduce_all(found[:, 0] < found[:, 1]))
    ([9, 2], True)
    """
    dtype = tf.float64 if alpha.dtype == tf.float64 else tf.float32
    given = tf.cast(alpha, dtype)
    # Of alpha + 1 a draw times u^(1 / alpha) is one of alpha.
    is_small = given < 1.0
    d = tf.where(is_small, given + 1.0, given) - 1.0 / 3.0
    x = tf.raw_ops.StatelessRandomNormalV2(
        shape=tf.concat([[_TRIES], shape], 0), key=key, counter=counter, alg=algorithm, dtype=dtype
    )
    used = tf.cast(tf.size(x), tf.uint64) * tf.one_hot(0, tf.size(counter), dtype=tf.uint64)
    uniform = 1.0 - tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.concat([[_TRIES + 1], shape], 0),
        key=key,
        counter=counter + used,
        alg=algorithm,
        dtype=dtype,
    )
    v = (1.0 + x / (3.0 * tf.sqrt(d))) ** 3
    is_positive = v > 0.0
    bound = 0.5 * x**2 + d * (1.0 - v + tf.math.log(tf.where(is_positive, v, 1.0)))
    is_taken = tf.cast(is_positive & (tf.math.log(uniform[:_TRIES]) < bound), tf.int32)
    is_first = (is_taken == 1) & (tf.cumsum(is_taken) == 1)
    found = tf.reduce_sum(tf.where(is_first, v, 0.0), axis=0)
    scale = tf.where(is_small, uniform[_TRIES] ** (1.0 / given), 1.0)
    return tf.cast(d * found * scale, alpha.dtype)
