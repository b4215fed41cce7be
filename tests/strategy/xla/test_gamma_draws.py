"""Draws that stand for those of gamma distributions, against their distribution functions."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.strategy.xla.gamma_draws import drawn

KEY, COUNTER, PHILOX = np.array([3], "uint64"), np.zeros([2], "uint64"), np.int32(1)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_draws_have_the_distributions_that_they_are_asked_for(is_compiled):
    alphas, count = tf.constant([0.2, 0.9, 1.0, 2.5, 40.0]), 20_000
    own = tf.function(drawn, jit_compile=is_compiled, autograph=False)
    found = np.sort(own(tf.constant([count, 5]), KEY, COUNTER, PHILOX, alphas), 0)
    expected = tf.math.igamma(alphas, found)  # the distribution function
    steps = (np.arange(count)[:, np.newaxis] + 0.5) / count
    # Kolmogorov and Smirnov: a right sampler is above this once in 10,000 times; these are fixed.
    assert np.abs(expected - steps).max() < 2.2 / np.sqrt(count)


def test_other_keys_and_counters_draw_other_numbers_and_the_same_ones_the_same():
    def at(key, counter):
        given = tf.constant([key], tf.uint64), tf.constant([counter, 0], tf.uint64)
        return drawn(tf.constant([50]), *given, PHILOX, tf.constant(2.0)).numpy()

    np.testing.assert_array_equal(at(1, 0), at(1, 0))
    for other in (at(2, 0), at(1, 10_000)):
        assert np.abs(np.corrcoef(at(1, 0), other)[0, 1]) < 0.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_draws_have_the_dtype_of_the_distributions(dtype):
    alpha = tf.cast([0.5, 3.0], dtype)
    found = drawn(tf.constant([1000, 2]), KEY, COUNTER, PHILOX, alpha)
    assert found.dtype == dtype
    means = np.mean(tf.cast(found, "float64"), 0)
    np.testing.assert_allclose(means, [0.5, 3.0], rtol=0.2)
