"""Moments over the batch: a mean and its variance come from one sum."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy
from partition.drawn import of_drawn_batches
from partition.examples import gradients, in_shares, numbers
from partition.samples import sample


def sums(report):
    return [each.tensors for each in report.exchanged if each.kind == "sum"]


def normalized(x, axes=(0, 1)):
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-2)


@in_shares
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_moments_are_as_exact_as_in_float64(far, length, replicas):
    x = (far + np.random.default_rng(0).normal(size=[length, 40, 3])).astype("float32")
    program = strategy(replicas[0]).partitioned(lambda x: tf.nn.moments(x, [0, 1]))
    mean, variance = program(x)
    np.testing.assert_allclose(mean, x.mean((0, 1), float), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(variance, x.var((0, 1), float), rtol=1e-5)
    assert sums(program.report) == [1]


@in_shares
def test_one_sum_gives_moments_and_one_their_gradients(length, replicas):
    report = check(lambda x: gradients(normalized, x), numbers(length, 3, 4), replicas=replicas)
    assert sums(report) == [1, 2]


@in_shares
def test_moments_that_do_not_need_each_other_travel_together(length, replicas):
    def function(x):
        return [tf.nn.moments(x, [0]), tf.nn.moments(tf.sin(x), [0, 2]), keras.ops.moments(x, 0)]

    report = check(function, numbers(length, 3, 4), replicas=replicas)
    assert sums(report) == [3]


def test_for_moments_of_what_is_computed_whole_nothing_is_summed():
    def function(x):
        return tf.nn.moments(tf.linalg.inv(tf.matmul(x, x, transpose_b=True)), [0])

    report = check(function, numbers(5, 40), replicas=[3], whole=["MatrixInverse"], tolerance=1e-4)
    assert sums(report) == []


def test_of_equal_examples_the_variance_is_none():
    def function(x):
        return tf.sqrt(tf.nn.moments(x, [0])[1])

    x = np.full([7, 3], 1e4 / 3, "float32")
    np.testing.assert_allclose(strategy(3).partitioned(function)(x), np.zeros(3), atol=1e-3)


def test_numbers_that_are_none_stay_such():
    x = numbers(7, 3)
    x[0, 0], x[1, 1] = np.nan, np.inf
    mean, variance = strategy(3).partitioned(lambda x: tf.nn.moments(x, [0]))(x)
    for found in (mean, variance):
        np.testing.assert_array_equal(np.isfinite(found), [False, False, True])


@sample(numbers(7, 4), replicas=[3])
def test_the_moments_of_squared_distances_are_their_own(x):
    mean = tf.reduce_mean(x, 0, keepdims=True)
    return [mean, *tf.nn.moments(tf.math.squared_difference(x, mean), [0])]


def test_a_mean_alone_and_distances_from_another_are_as_they_were():
    def function(x):
        mean, other = tf.reduce_mean(x, 0, keepdims=True), tf.reduce_mean(x, 1, keepdims=True)
        return [
            mean,
            tf.reduce_mean(tf.math.squared_difference(x, other), 0, keepdims=True),
            tf.reduce_mean(tf.math.squared_difference(2 * x, mean), 0, keepdims=True),
            tf.reduce_mean(tf.math.squared_difference(x, mean), 1, keepdims=True),
        ]

    # The second, which is returned, need not wait for the first; the third must.
    assert sums(check(function, numbers(7, 4))) == [2, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_moments_of_other_numbers_are_one_devices(dtype):
    def function(x):
        return tf.nn.moments(x, [0, 1])

    tolerance = 2e-3 if dtype == np.float16 else 1e-12
    check(function, numbers(7, 3, 4, dtype=dtype), tolerance=tolerance)


@sample(numbers(7, 3, 4), whole=None)
def test_moments_in_branches_and_loops_are_one_devices(x):
    at_once = tf.cond(tf.reduce_sum(x) > 0, lambda: gradients(normalized, x)[1], lambda: -x)
    _, in_turn = tf.while_loop(
        lambda count, x: count < 3, lambda count, x: (count + 1, normalized(x)), [0, x]
    )
    again = tf.recompute_grad(normalized)
    return at_once, in_turn, gradients(again, x)


def test_a_function_that_is_called_twice_has_moments_of_each_call():
    inner = tf.function(normalized)
    check(lambda x: [inner(x), inner(tf.sin(x))], numbers(7, 3, 4))


@of_drawn_batches
def test_moments_over_any_axes_are_those_of_one_device_wherever_the_batch_is(case):
    def function(t):
        found = [tf.nn.moments(t, [axis], keepdims=True) for axis in range(case.rank)]
        return [*found, tf.nn.moments(t, list(range(case.rank)))]

    case.check(function)
