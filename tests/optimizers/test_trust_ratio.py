"""The pure functions of the trust ratio, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from optimizers import problems

from tfdp.optimizers.trust_ratio import clipped, norm, trust_ratio

norms = st.just(0.0) | st.floats(1e-6, 1e6)


@problems.few
@given(
    arrays.arrays(
        "float64",
        arrays.array_shapes(min_dims=0, max_dims=4, max_side=4),
        elements=st.just(0.0) | st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3),
    ),
    st.sampled_from(["float32", "float64"]),
)
def test_a_norm_is_euclidean_whatever_the_rank(array, dtype):
    actual = norm(tf.constant(array, dtype))
    assert (actual.shape, actual.dtype) == ((), dtype)
    expected = np.sqrt((array.astype(dtype).astype("float64") ** 2).sum())
    np.testing.assert_allclose(actual, expected, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype):
    # 300² is beyond float16; and in bfloat16, 256 + 1 is 256.
    assert float(norm(tf.fill([2, 2], tf.constant(300.0, dtype)))) == 600.0
    ones = norm(tf.ones([1024], dtype))
    assert (float(ones), ones.dtype) == (32.0, tf.float32)


def test_a_norm_of_complex_numbers_is_that_of_their_moduli():
    assert float(norm(tf.constant([3 + 4j, -12j], tf.complex64))) == 13.0


def test_a_norm_of_what_is_not_finite_is_not_finite():
    assert np.isnan(norm(tf.constant([1.0, np.nan])))
    assert np.isinf(norm(tf.constant([1.0, -np.inf])))


@problems.few
@given(
    weight=norms,
    update=norms,
    coefficient=st.floats(1e-3, 10.0),
    phi=problems.bounds(10.0),
    to=problems.bounds(2.0),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_ratio_is_that_of_the_norms_within_its_bounds(
    weight, update, coefficient, phi, to, dtype
):
    weight, update = np.asarray(weight, dtype), np.asarray(update, dtype)
    actual = trust_ratio(
        tf.constant(weight),
        tf.constant(update),
        coefficient,
        weight_norm_bounds=phi,
        ratio_bounds=to,
    )
    weight, update, expected = float(weight), float(update), 1.0
    if phi:
        weight = min(max(weight, phi[0]), phi[1])
    if weight > 0 and update > 0:
        expected = coefficient * weight / update
    if to:
        expected = min(max(expected, to[0]), to[1])
    assert (actual.shape, actual.dtype) == ((), dtype)
    np.testing.assert_allclose(float(actual), expected, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("update", [0.0, 2.0])
def test_a_ratio_without_a_norm_is_1(weight, update):
    ratio = trust_ratio(tf.constant(weight), tf.constant(update), 0.125)
    assert float(ratio) == (0.125 if weight and update else 1.0)


def test_a_bound_may_give_a_norm_to_weights_that_have_none_or_take_it():
    def ratio(weight, bounds):
        return float(trust_ratio(tf.constant(weight), tf.constant(2.0), weight_norm_bounds=bounds))

    assert ratio(0.0, (4.0, 8.0)) == 2.0
    assert ratio(5.0, (0.0, 0.0)) == 1.0


def test_a_ratio_is_in_its_bounds_also_where_there_is_no_norm():
    none = tf.constant(0.0)
    assert float(trust_ratio(none, none, ratio_bounds=(0.25, 0.75))) == 0.75


def test_bounds_may_be_open_above():
    assert float(clipped(tf.constant(1e30), (2.0, np.inf))) == np.float32(1e30)
    assert float(clipped(tf.constant(1.0), (2.0, np.inf))) == 2.0


def test_bounds_are_not_rounded_to_float32():
    assert float(clipped(tf.constant(1.0, tf.float64), (0.0, 0.1))) == 0.1


def test_a_trust_ratio_is_the_same_in_a_graph():
    compiled = tf.function(trust_ratio, jit_compile=True)
    for weight, update in ((3.0, 6.0), (0.0, 6.0), (3.0, 0.0)):
        pair = tf.constant(weight), tf.constant(update)
        assert float(compiled(*pair)) == float(trust_ratio(*pair))
