"""Tensor lists whose elements have other layouts than what they meet."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, strategy
from partition.rules.test_cut_variables import sharded_variable
from partition.samples import sample

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3, 3)).astype("float32")


def rows(count, width):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


def listed(tensor):
    shape = tf.shape(tensor)[1:]
    return tf.raw_ops.TensorListFromTensor(tensor=tensor, element_shape=shape)


def stacked(handle, dtype=tf.float32):
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=tf.constant(-1), element_dtype=dtype
    )


def scanned(x, weights):
    return tf.scan(lambda h, w: tf.tanh(h @ w), weights, initializer=x)[-1]


@sample(rows(7, 3))
def test_gradients_of_stacked_weights_are_summands_in_a_list_that_began_as_zeros(x):
    weights = tf.constant(WEIGHTS)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(scanned(x, weights) ** 2)
    return loss, tape.gradient(loss, weights)


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_stacked_weights_that_are_cut_are_gathered_once_before_they_are_listed(replicas):
    kept, _ = sharded_variable(replicas, WEIGHTS)
    weights = tf.constant(WEIGHTS)

    @strategy(replicas).partitioned
    def step(x):
        return scanned(x, tf.convert_to_tensor(kept))

    x = rows(7, 3)
    np.testing.assert_allclose(step(x), scanned(x, weights), rtol=1e-5)
    kinds = [each.kind for each in step.report.exchanged]
    assert kinds.count("gather of parts") == 1


def squares(x):
    """Examples by examples: cut along the first axis."""
    return x @ tf.transpose(x)


@sample(rows(7, 3))
def test_an_element_that_is_cut_along_another_axis_makes_the_list_whole(x):
    written = tf.TensorArray(tf.float32, 3).write(0, squares(x + 1.0))
    for place, each in enumerate([tf.transpose(squares(x)), squares(2.0 * x)], start=1):
        written = written.write(place, each)
    return written.stack()


@sample(rows(7, 3), whole=None)
def test_in_a_loop_too(x):
    def body(k, kept):
        return k + 1, kept.write(k, tf.transpose(squares(2.0 * x)))

    first = tf.TensorArray(tf.float32, 4, element_shape=[None, None]).write(0, squares(x))
    _, kept = tf.while_loop(lambda k, _: k < 4, body, (1, first))
    return kept.stack()


PARTS = {
    "whole": lambda x: tf.constant(WEIGHTS[:2]),
    "summands": lambda x: tf.stack([tf.transpose(x) @ x, tf.transpose(x) @ (2.0 * x)]),
    "by the batch": lambda x: tf.stack([x, 2.0 * x]),
}


@pytest.mark.parametrize("one", PARTS)
@pytest.mark.parametrize("other", PARTS)
def test_lists_of_any_elements_are_added(one, other):
    def step(x):
        return stacked(tf.raw_ops.AddN(inputs=[listed(PARTS[one](x)), listed(PARTS[other](x))]))

    check(step, rows(3, 3))
