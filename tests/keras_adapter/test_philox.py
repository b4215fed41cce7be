"""The later numbers of a draw are TensorFlow's own, of the whole draw."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.keras_adapter.random import philox

FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
WHOLE = 200


def whole(kind, seed, dtype):
    """What TensorFlow draws."""
    if kind == "integers":
        return tf.random.stateless_uniform([WHOLE], seed, -3, 1000, dtype=dtype)
    return getattr(tf.random, f"stateless_{kind}")([WHOLE], seed, dtype=dtype)


def later(kind, shape, seed, skipped, dtype):
    """The part of it."""
    bounds = {"minval": -3, "maxval": 1000} if kind == "integers" else {}
    return getattr(philox, kind)(shape, seed, skipped, dtype, **bounds)


KINDS = [
    *[(kind, dtype) for kind in ("uniform", "normal") for dtype in FLOATS],
    *[("integers", dtype) for dtype in (tf.int32, tf.int64)],
]
# Each has a way of its own to the bits.
FAST = {("uniform", tf.bfloat16), ("normal", tf.float32), ("integers", tf.int64)}


def name_of(value):
    """Names a dtype in a test's id."""
    return getattr(value, "name", value)


each_kind = pytest.mark.parametrize(("kind", "dtype"), KINDS, ids=name_of)


@pytest.mark.slow
@each_kind
@settings(max_examples=60)
@given(
    skipped=st.integers(0, WHOLE),
    rows=st.integers(0, 12),
    columns=st.integers(0, 5),
    seed=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
)
def test_they_are_the_rest_of_the_whole_draw(kind, dtype, skipped, rows, columns, seed):
    seed = tf.constant(seed, tf.int32)
    size = min(rows * columns, WHOLE - skipped)
    shape = (rows, columns) if size == rows * columns else (size,)
    drawn = later(kind, shape, seed, tf.constant(skipped, tf.int64), dtype)
    assert drawn.shape == shape
    assert drawn.dtype == dtype
    expected = whole(kind, seed, dtype)[skipped : skipped + size]
    np.testing.assert_array_equal(tf.reshape(drawn, [-1]), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype"),
    tiers.cases(KINDS, FAST),
    ids=name_of,
)
def test_they_are_so_where_xla_compiles(kind, dtype):
    @tf.function(jit_compile=True)
    def compiled(seed, skipped):
        return later(kind, (7, 3), seed, skipped, dtype)

    @tf.function(jit_compile=True)
    def compiled_whole(seed):
        return whole(kind, seed, dtype)

    seed = tf.constant([5, -9])
    for skipped in (0, 1, 2, 3, 4, 99):
        drawn = tf.reshape(compiled(seed, tf.constant(skipped, tf.int64)), [-1])
        np.testing.assert_array_equal(drawn, compiled_whole(seed)[skipped : skipped + 21])


def test_the_counter_carries_into_its_second_word(monkeypatch):
    key = tf.constant([3], tf.uint64)
    counter = tf.constant([2**64 - 2, 5], tf.uint64)
    monkeypatch.setattr(tf.raw_ops, "StatelessRandomGetKeyCounter", lambda seed: (key, counter))
    expected = tf.raw_ops.StatelessRandomUniformV2(shape=[40], key=key, counter=counter, alg=1)
    for skipped in (3, 7, 8, 9, 20):
        drawn = philox.uniform([12], None, tf.constant(skipped, tf.int64), tf.float32)
        np.testing.assert_array_equal(drawn, expected[skipped : skipped + 12])


@pytest.mark.parametrize("shape", [[], (), np.int32([2, 3]), np.int64([2, 3])])
def test_a_shape_may_be_any_of_tensorflows(shape):
    shape = tf.constant(shape) if isinstance(shape, np.ndarray) else shape
    seed = tf.constant([1, 2])
    drawn = philox.normal(shape, seed, tf.constant(0, tf.int64), tf.float32)
    np.testing.assert_array_equal(drawn, tf.random.stateless_normal(shape, seed))
