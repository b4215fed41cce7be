import numpy as np
import pytest
import tensorflow as tf
from partition.check import check


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


UNARY = [
    tf.abs,
    tf.exp,
    tf.nn.relu,
    tf.math.erf,
    tf.sign,
    tf.math.is_nan,
    tf.nn.leaky_relu,
    tf.round,
]
BINARY = [
    tf.maximum,
    tf.math.squared_difference,
    tf.atan2,
    tf.less,
    tf.subtract,
    tf.multiply,
    tf.divide,
]


@pytest.mark.parametrize("count", [7, 2])
def test_each_element_is_that_of_one_device(count):
    x, y = rows(count, 3), rows(count, 3, seed=1)
    check(lambda x: [function(x) for function in UNARY], x)
    check(lambda x, y: [function(x, y) for function in BINARY], x, y)


@pytest.mark.parametrize("count", [7, 2])
def test_operands_are_broadcast_against_each_other(count):
    def function(x, y):
        weights = tf.constant([[1.0, 2.0, 3.0]])
        return (
            x * weights,
            x + weights[0],
            x - 1.0,
            x[:, tf.newaxis] * y,
            x / tf.reduce_sum(x, 1)[:, None],
        )

    check(function, rows(count, 3), rows(count, 1, 3, seed=1))


def test_a_batch_against_itself_gathers_one_side():
    report = check(lambda x: x[:, tf.newaxis] - x[tf.newaxis], rows(7, 3))
    assert [each.kind for each in report.exchanged] == ["gather"]


def test_operands_of_two_batches_are_compared_whole():
    check(lambda x, y: x[:, tf.newaxis] + y[tf.newaxis], rows(5, 3), rows(3, 3, seed=1))


def test_summands_stay_summands_through_what_is_linear():
    def function(x):
        total = tf.reduce_sum(x, 0)
        return tf.cast(-total * 2 / 3 + total, tf.float64), tf.where(
            [True, False, True], total, total * 3
        )

    report = check(function, rows(7, 3))
    # Of two dtypes, each once.
    assert [(each.kind, len(each.contents)) for each in report.exchanged] == [("sum", 1)] * 2


def test_a_whole_tensor_is_added_once():
    def function(x):
        return tf.add_n(
            [tf.reduce_sum(x, 0), tf.ones([3]), tf.reduce_mean(x, 0)]
        ), 5.0 - tf.reduce_sum(x)

    check(function, rows(7, 3))


@pytest.mark.parametrize("shape", [(7, 3), (7, 1), (7, 4)])
def test_whether_shapes_fit_is_asked_as_on_one_device(shape):
    y = rows(*shape)
    check(lambda x: [x == y, x != y, x == x * 1.0], rows(7, 3), whole=None)


def test_select_by_rows_chooses_whole_rows():
    def function(x):
        return tf.raw_ops.Select(condition=x[:, 0] > 0, x=x, y=-2 * x)

    check(function, rows(7, 3))
