"""Tensor lists whose elements have other layouts than what they meet."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, strategy
from partition.rules.test_sharded_variables import sharded_variable
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


X = np.random.default_rng(2).normal(size=(7, 3)).astype("float32")
WEIGHT = np.random.default_rng(3).normal(size=(3, 3)).astype("float32")


def gradient_of(loss):
    """A function of a batch: a loss of it and a weight, and the gradient by the weight."""

    def function(x):
        weight = tf.constant(WEIGHT)
        with tf.GradientTape() as tape:
            tape.watch(weight)
            value = loss(x, weight)
        return tape.gradient(value, weight), value

    return function


def in_a_branch(x, weight):
    y = tf.cond(tf.shape(x)[0] > 2, lambda: tf.tanh(x @ weight), lambda: tf.sin(x))
    return tf.reduce_mean(y**2)


def in_one_of_three(x, weight):
    branches = [lambda: x, lambda: tf.tanh(x @ weight), lambda: tf.exp(-x @ weight)]
    return tf.reduce_mean(tf.switch_case(tf.shape(x)[0] % 3, branches) ** 2)


def in_a_loop(x, weight):
    def body(index, y):
        y = tf.cond(index % 2 == 0, lambda: tf.tanh(y @ weight), lambda: tf.sin(y))
        return index + 1, y

    return tf.reduce_mean(tf.while_loop(lambda index, _: index < 4, body, (0, x))[1] ** 2)


def a_loop_in_a_branch(x, weight):
    def rounds():
        body = lambda index, y: (index + 1, tf.tanh(y @ weight))  # noqa: E731
        return tf.while_loop(lambda index, _: index < 3, body, (0, x))[1]

    return tf.reduce_mean(tf.cond(tf.shape(x)[0] > 2, rounds, lambda: x) ** 2)


def a_branch_of_a_branch_in_a_loop(x, weight):
    def body(index, y):
        inner = lambda: tf.cond(index == 2, lambda: tf.exp(-y @ weight), lambda: y)  # noqa: E731
        return index + 1, tf.cond(index % 2 == 0, inner, lambda: tf.tanh(y @ weight))

    return tf.reduce_mean(tf.while_loop(lambda index, _: index < 4, body, (0, x))[1] ** 2)


def sizes_that_differ(x, weight):
    """The bias has fewer axes than the rows, so its gradient asks for the shapes of both."""
    y = tf.cond(tf.shape(x)[0] > 2, lambda: tf.tanh(x + weight[0]) * x, lambda: x)
    return tf.reduce_mean(y**2)


@pytest.mark.parametrize(
    "loss",
    [
        in_a_branch,
        in_one_of_three,
        in_a_loop,
        a_loop_in_a_branch,
        a_branch_of_a_branch_in_a_loop,
        sizes_that_differ,
    ],
)
def test_a_gradient_of_branches_sends_one_sum_and_gathers_nothing(loss):
    report = check(gradient_of(loss), X)
    assert [each.kind for each in report.exchanged] == ["sum"]


def test_what_begins_whole_and_becomes_cut_is_kept_as_it_comes_to_be():
    def loss(x, weight):
        def body(index, y):
            y = tf.cond(index % 2 == 0, lambda: tf.tanh(y @ weight), lambda: tf.sin(y))
            return index + 1, y + x

        start = tf.ones([1, 3])
        shapes = (tf.TensorShape([]), tf.TensorShape([None, 3]))
        end = tf.while_loop(lambda index, _: index < 3, body, (0, start), shapes)
        return tf.reduce_mean(end[1] ** 2)

    check(gradient_of(loss), X, whole=None)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: tf.experimental.Optional.from_value(tf.ones_like(x[:1])),
        lambda x: tf.experimental.Optional.from_value(tf.sort(x, 0)),
        lambda x: tf.experimental.Optional.empty(tf.TensorSpec([None, 3])),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_branches_whose_optionals_are_cut_otherwise_give_one_that_can_hold_both(other, is_first):
    def function(x):
        first = tf.equal(tf.shape(x)[0] > 2, is_first)
        own = lambda: tf.experimental.Optional.from_value(2 * x)  # noqa: E731
        found = tf.cond(first, own, lambda: other(x))
        value = tf.cond(found.has_value(), found.get_value, lambda: -x)
        return value + tf.ones([1, 3]), tf.reduce_sum(value), found.has_value()

    check(function, X, whole=None)


def test_an_optional_of_several_tensors_is_whole():
    def function(x):
        pair = tf.experimental.Optional.from_value((x, x + 1))
        first, second = pair.get_value()
        return first * second, tf.reduce_sum(second)

    report = check(function, X, whole={"OptionalFromValue"})
    assert report.exchanged[0].kind == "gather"


SCALE = np.random.default_rng(4).normal(size=3).astype("float32")


def gradients_of(loss):
    """A function of a batch: the gradients of a loss of it and of two weights."""

    def function(x):
        weights = tf.constant(WEIGHT), tf.constant(SCALE)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(x, *weights)
        return *map(tf.convert_to_tensor, tape.gradient(value, weights)), value

    return function


def if_positive(number, first, other):
    return tf.cond(number > 0, first, other)


def rounds(y, w, count=2):
    body = lambda index, y: (index + 1, tf.tanh(y @ w))  # noqa: E731
    return tf.while_loop(lambda index, _: index < count, body, (0, y))[1]


def scaled_rounds(y, v, count=3):
    body = lambda index, y: (index + 1, tf.tanh(y * v))  # noqa: E731
    return tf.while_loop(lambda index, _: index < count, body, (0, y))[1]


def a_loop_over_examples_or_weights(x, w, v):
    mean = tf.reduce_mean
    of_weights = lambda: mean(scaled_rounds(v, v) * w)  # noqa: E731
    return if_positive(mean(x), lambda: mean(rounds(x, w)), of_weights)


def a_loop_over_weights_or_examples(x, w, v):
    mean = tf.reduce_mean
    return if_positive(mean(x), lambda: mean(scaled_rounds(w, v)), lambda: mean(rounds(x, w)))


def rows_in_another_order(x, w, v):
    """Nobody knows that what one branch gives has the batch's length."""

    def body(index, y):
        def reversed_where_negative():
            return tf.where(y > 0, y * v, tf.gather(y, tf.range(tf.shape(y)[0])[::-1]))

        ordered = lambda: tf.gather(y @ w, tf.argsort(y[:, 0]))  # noqa: E731
        return index + 1, if_positive(tf.reduce_mean(y), ordered, reversed_where_negative)

    return tf.reduce_mean(tf.while_loop(lambda index, _: index < 3, body, (0, x))[1] ** 3)


@pytest.mark.parametrize(
    "loss",
    [
        a_loop_over_examples_or_weights,
        a_loop_over_weights_or_examples,
        rows_in_another_order,
    ],
)
def test_what_branches_keep_is_whole_where_it_cannot_be_told_from_what_others_keep(loss):
    for sign, length in ((1, 7), (-1, 7), (1, 2)):
        check(gradients_of(loss), sign * X[:length], whole=None)
