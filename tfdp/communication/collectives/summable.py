"""What is summed over replicas, in the few dtypes that engines sum."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

# A value that is summed: a tensor, or slices, whose sum holds the rows of all ranks.
Value: TypeAlias = tf.Tensor | tf.IndexedSlices

_SUMMED_AS_THEY_ARE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def map_values(fn: Callable[[tf.Tensor], tf.Tensor], value: Value) -> Value:
    """Applies `fn` to a tensor, or to the values of IndexedSlices."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(fn(value.values), value.indices, value.dense_shape)
    return fn(value)


def as_summed(value: Value) -> Value:
    """Returns numbers in a dtype that engines sum.

    Complex numbers become pairs, along an axis more; other whole numbers int64, whose sums end in
    the same bits; floats of 8 bits float32.

    Raises:
      TypeError: The value holds no numbers.

    >>> as_summed(tf.constant([1 + 2j])).numpy().tolist()
    [[1.0, 2.0]]
    """
    dtype = value.dtype
    if dtype in _SUMMED_AS_THEY_ARE:
        return value
    if dtype.is_complex:
        return map_values(lambda tensor: tf.bitcast(tensor, dtype.real_dtype), value)
    check(dtype)
    wider = tf.int64 if dtype.is_integer else tf.float32
    return map_values(lambda tensor: tf.cast(tensor, wider), value)


def check(dtype: tf.DType) -> None:
    """Raises TypeError unless tensors of a dtype can be summed."""
    if not (dtype.is_integer or dtype.is_floating or dtype.is_complex):
        fix = "Gather it"
        if dtype.is_bool:
            fix = "Cast it first: tf.cast(value, tf.int32) sums to the number of replicas with True"
        raise TypeError(
            f"What is summed over replicas must be numbers, but received a tensor of {dtype.name}. "
            f"{fix}."
        )


def as_before(total: Value, dtype: tf.DType) -> Value:
    """Returns the sum of what `as_summed` has made of values of `dtype`, in that dtype.

    >>> as_before(as_summed(tf.constant([300], tf.int32)), tf.int32).numpy().tolist()
    [300]
    """
    if dtype.is_complex:
        return map_values(lambda tensor: tf.bitcast(tensor, dtype), total)
    return map_values(lambda tensor: tf.cast(tensor, dtype), total)


def precise(dtype: Any) -> tf.DType:
    """Returns the dtype in which means of `dtype` are computed.

    >>> [precise(each).name for each in ("bfloat16", "float64", "int32", "complex64")]
    ['float32', 'float64', 'float64', 'complex64']
    """
    dtype = tf.as_dtype(dtype)
    if dtype.is_complex:
        return dtype
    return tf.float64 if dtype.is_integer or dtype == tf.float64 else tf.float32
