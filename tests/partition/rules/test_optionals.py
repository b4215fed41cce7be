"""What branches keep for their gradients stays cut: nothing of it is sent."""

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check

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


def rounds(y, weight, count=2):
    body = lambda index, y: (index + 1, tf.tanh(y @ weight))  # noqa: E731
    return tf.while_loop(lambda index, _: index < count, body, (0, y))[1]


def either(y, weight):
    return tf.cond(tf.reduce_max(y) > 0.5, lambda: tf.tanh(y @ weight), lambda: tf.nn.softplus(y))


def kinds_in_branches_of_branches(x, weight):
    """An optional may have a cut matrix or a vector, and outside another matrix, which is whole."""
    mean = tf.reduce_mean(x)
    narrow = lambda: tf.reduce_sum(tf.exp(tf.reduce_mean(x, 0) * weight[0]))  # noqa: E731
    wide = lambda: tf.reduce_mean(tf.tanh(x @ weight))  # noqa: E731
    alike = lambda: tf.nn.softmax(tf.matmul(x @ weight, x, transpose_b=True))  # noqa: E731
    first = lambda: tf.cond(mean > 0, narrow, wide)  # noqa: E731
    other = lambda: tf.cond(mean > -9, lambda: tf.reduce_mean(alike() ** 2), wide)  # noqa: E731
    return tf.cond(tf.shape(x)[0] > 2, first, other) + tf.cond(mean > 9, first, other)


def such_in_a_loop(x, weight):
    def body(index, y):
        apart = lambda: y - tf.reduce_max(y, 0)  # noqa: E731
        whole = lambda: tf.nn.softmax(y, 0)  # noqa: E731
        first = lambda: tf.cond(tf.reduce_max(y) > 0.3, whole, lambda: tf.exp(y))  # noqa: E731
        other = lambda: tf.cond(  # noqa: E731
            tf.reduce_min(y) < 0.1, apart, lambda: tf.tanh(y @ weight)
        )
        return index + 1, tf.cond(index % 2 == 0, first, other)

    return tf.reduce_mean(tf.while_loop(lambda index, _: index < 4, body, (0, x))[1] ** 2)


@pytest.mark.parametrize("loss", [kinds_in_branches_of_branches, such_in_a_loop])
@pytest.mark.parametrize("length", [7, 2])
def test_what_branches_of_branches_keep_is_whole_where_kinds_cannot_be_told_apart(loss, length):
    check(gradient_of(loss), X[:length], whole=None)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("length", [7, 2])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, weight: rounds(x, weight), either),
        (either, lambda x, weight: rounds(x, weight)),
        (lambda x, weight: rounds(x, weight), lambda x, weight: rounds(weight[:1], weight, 3)),
        (lambda x, weight: rounds(x, weight, 0), either),
    ],
)
def test_branches_of_which_one_keeps_lists_keep_what_the_other_can_hold(one, other, first, length):
    def loss(x, weight):
        is_first = tf.equal(tf.shape(x)[0] > 2, first)
        return tf.cond(
            is_first,
            lambda: tf.reduce_mean(one(x, weight) ** 2),
            lambda: tf.reduce_mean(other(x, weight)),
        )

    check(gradient_of(loss), X[:length], whole=None)


def test_rows_in_an_order_of_the_batch_are_kept_in_loops():
    """Within the loop nobody knows that what comes out of a branch has the batch's length."""

    def loss(x, weight):
        def body(index, y):
            ordered = lambda: tf.gather(y @ weight, tf.argsort(y[:, 0]))  # noqa: E731
            return index + 1, tf.cond(tf.reduce_mean(y) > 0, ordered, lambda: y * weight[0])

        return tf.reduce_mean(tf.while_loop(lambda index, _: index < 3, body, (0, x))[1] ** 3)

    check(gradient_of(loss), X, whole=None)
