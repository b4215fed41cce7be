"""Checksums of tensors, computed where they are: what travels of a GPU's tensor is one number."""

import numpy as np
import tensorflow as tf

# What is made on the way has so many elements of 8 bytes, however large the tensor is.
BLOCK = 2**20

# Odd numbers: no product with one loses a difference, modulo 2**64.
_BY_PLACE, _BY_BITS, _BY_BLOCK = (
    0x9E3779B97F4A7C15 - 2**64,
    6364136223846793005,
    2862933555777941757,
)


def of_tensor(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the checksum of a tensor's bits, int64, on the tensor's device.

    Each element's bits are mixed with its place, one to one, and the results are summed modulo
    2**64, so the order of additions is nothing. Tensors that differ in one element have other
    checksums, always; with more differences they have equal ones as seldom as random numbers.

    Cost: a read of the tensor, and memory for a few blocks of `BLOCK` elements.

    Args:
      tensor: Of numbers or booleans, of a known shape.

    >>> one, nan = tf.constant([1.0, 2.0]), tf.constant([1.0, float("nan")])
    >>> bool(of_tensor(one) == of_tensor(one + 0)), bool(of_tensor(one) == of_tensor(nan))
    (True, False)
    """
    flat = _real(tf.reshape(tensor, [-1]))
    size = flat.shape.num_elements()
    total = tf.constant(0, tf.int64)
    if not size:
        return total
    places = tf.constant(np.arange(min(size, BLOCK)) * _BY_PLACE)
    for first in range(0, size, BLOCK):
        bits = bits_of(flat[first : first + BLOCK])
        mixed = bits ^ places[: bits.shape[0]]
        for _ in range(2):
            mixed *= _BY_BITS
            mixed ^= tf.bitwise.right_shift(mixed, tf.constant(32, tf.int64)) & (2**32 - 1)
        total = total * _BY_BLOCK + tf.reduce_sum(mixed)
    return total


def bits_of(flat: tf.Tensor) -> tf.Tensor:
    """Returns the bits of a vector of numbers or booleans, as a vector of int64.

    >>> bits_of(tf.constant([0.0, 1.0])).numpy().tolist()
    [0, 1065353216]
    """
    flat = _real(flat)
    if flat.dtype.is_floating and flat.dtype.size == 1:  # TensorFlow has no bits of these
        flat = tf.cast(flat, tf.float32)
    if flat.dtype.is_floating:
        flat = tf.bitcast(flat, {2: tf.int16, 4: tf.int32, 8: tf.int64}[flat.dtype.size])
    return tf.cast(flat, tf.int64)


def _real(flat: tf.Tensor) -> tf.Tensor:
    """Returns complex numbers as twice as many, in turn their real and imaginary parts."""
    if flat.dtype.is_complex:
        return tf.reshape(tf.bitcast(flat, flat.dtype.real_dtype), [-1])
    return flat
