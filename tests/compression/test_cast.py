"""Cast: what is sent, what comes back, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression import Cast, Compression

HALVES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.mark.parametrize("given", ["float32", "float64"])
@pytest.mark.parametrize("half", HALVES)
def test_numbers_are_sent_as_16_bits_and_come_back_as_they_were_given(half, given):
    values = np.random.default_rng(0).normal(size=1000).astype(given)
    doubling = Transport(lambda value: value + value)
    total = Cast(half).sum(tf.constant(values), doubling)
    (sent,) = doubling.sent
    cast = values.astype(HALVES[half])
    assert sent.dtype.name == half
    np.testing.assert_array_equal(sent.numpy().view(np.uint16), cast.view(np.uint16))
    assert total.dtype.name == given
    np.testing.assert_array_equal(total, 2 * cast.astype(given))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int64"])
def test_all_else_is_sent_whole(dtype):
    value = tf.cast([1, 257, 1001], dtype)
    transport = Transport(tf.identity)
    Cast("bfloat16").sum(value, transport)
    assert transport.sent == [value]


def test_of_slices_the_values_are_cast_and_the_indices_whole():
    value = tf.IndexedSlices(tf.constant([[1.001], [2.0]]), tf.constant([257, 1]), [300, 1])
    transport = Transport(lambda value: value)
    total = Cast("bfloat16").sum(value, transport)
    (sent,) = transport.sent
    assert (sent.values.dtype, sent.indices.dtype) == (tf.bfloat16, tf.int32)
    np.testing.assert_array_equal(total.values, [[1.0], [2.0]])
    np.testing.assert_array_equal(total.indices, [257, 1])
    assert total.values.dtype == tf.float32
    assert list(total.dense_shape) == [300, 1]


def test_what_exceeds_float16_becomes_infinite_and_nothing_exceeds_bfloat16():
    large = tf.constant([7e4, -1e38, 1e-30])
    same = Transport(lambda value: value)
    np.testing.assert_array_equal(Cast("float16").sum(large, same), [np.inf, -np.inf, 0.0])
    np.testing.assert_allclose(Cast("bfloat16").sum(large, same), large, rtol=2**-8)
    assert [Cast(half).keeps_range for half in HALVES] == [True, False]


@pytest.mark.parametrize("dtype", ["int8", "float64", "half", tf.bfloat16, None])
def test_another_dtype_is_refused_with_those_there_are(dtype):
    with pytest.raises(ValueError, match=r"bfloat16.*or.*float16.*received") as refused:
        Cast(dtype)
    assert repr(dtype) in str(refused.value)


def test_equal_casts_are_equal_and_say_what_they_are():
    assert Cast("float16") == Cast(dtype="float16") != Cast("bfloat16")
    assert repr(Cast("bfloat16")) == "Cast(dtype='bfloat16')"
    assert isinstance(Cast("bfloat16"), Compression)
