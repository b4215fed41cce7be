import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check
from partition.drawn import MERGES, of_drawn_batches
from partition.samples import sample


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


@sample(rows(7, 3))
def test_a_whole_tensor_is_added_once(x):
    return tf.add_n([tf.reduce_sum(x, 0), tf.ones([3]), tf.reduce_mean(x, 0)]), 5.0 - tf.reduce_sum(
        x
    )


@pytest.mark.parametrize("shape", [(7, 3), (7, 1), (7, 4)])
def test_whether_shapes_fit_is_asked_as_on_one_device(shape):
    y = rows(*shape)
    check(lambda x: [x == y, x != y, x == x * 1.0], rows(7, 3), whole=None)


@sample(rows(7, 3), whole=["Equal"])
def test_rows_of_other_widths_are_unequal_as_on_one_device(x):
    return x == tf.concat([x, x], 1), x != tf.concat([x, x], 1)[:, :3]


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
@pytest.mark.parametrize("count", [3, 4])
def test_of_operands_that_may_not_fit_one_truth_value_has_the_shape_of_one_device(count, replicas):
    c = tf.constant([[1.0, 2.0, 3.0]])

    def function(x):
        one, column = x == c[0], x[:, tf.newaxis] != tf.concat([c, c], 1)[:, : tf.size(x) - 1]
        return [
            (each, tf.size(each), tf.shape(each), tf.rank(each), tf.ones_like(each, tf.float32))
            for each in (one, column, tf.zeros(tf.shape(one)), x[:2] == c)
        ]

    check(function, np.arange(1, count + 1, dtype="float32"), replicas=[replicas], whole=None)


def test_operands_that_surely_fit_are_compared_by_rows():
    x = rows(7, 3)
    check(lambda x: [x == x[:, :1], x != tf.ones([3]), x == 0.0, x[:, 0] == 1.0], x)


@sample(rows(7, 3))
def test_select_by_rows_chooses_whole_rows(x):
    return tf.raw_ops.Select(condition=x[:, 0] > 0, x=x, y=-2 * x)


@sample(rows(7, 3))
def test_select_by_rows_takes_a_replica_s_rows_of_constants(x):
    constant, every_third = tf.reshape(tf.range(21.0), [7, 3]), tf.constant(np.arange(7) % 3 > 0)
    select = tf.raw_ops.Select
    return (
        select(condition=x[:, 0] > 0, x=x, y=constant),
        select(condition=x[:, 0] > 0, x=constant, y=x),
        select(condition=every_third, x=x, y=-x),
    )


@of_drawn_batches
def test_operands_of_any_axes_meet_wherever_the_batch_is(case):
    ones, fewer = case.some(range(case.rank)), case.choose(range(case.rank))

    def function(t):
        narrow = tf.reduce_max(t, ones, keepdims=True) - 2.0
        lower = tf.reduce_min(t, range(fewer))
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        vector = tf.reduce_max(whole, case.others)
        last = tf.reduce_max(whole, range(case.rank - 1)) if case.axis == case.rank - 1 else lower
        return (
            t - narrow,
            lower - t,
            whole - t,
            t / last,
            tf.where(t > narrow, lower, whole),
            tf.math.maximum(tf.zeros_like(t) + lower, narrow),
            vector * tf.reduce_max(t, case.others),
        )

    case.check(function, whole=["Cumsum"])


@of_drawn_batches(merges=MERGES[:1])
def test_rows_are_chosen_wherever_the_batch_is(case):
    def function(t):
        whole = tf.cumsum(t, case.axis) % 5
        select = tf.raw_ops.Select
        rows, all_rows = (tf.reduce_max(each, [1, 2]) % 3 > 1 for each in (t, whole))
        return (
            select(condition=rows, x=t, y=-t),
            select(condition=all_rows, x=t, y=whole),
            select(condition=rows, x=whole, y=t),
            select(condition=rows, x=whole, y=whole),
            select(condition=t > whole, x=t, y=-t),
            select(condition=rows[0], x=t, y=whole),
        )

    case.check(function, whole=["Cumsum", "StridedSlice", *(["Select"] if case.axis else [])])


@of_drawn_batches
def test_sums_of_any_batch_go_on_as_summands(case):
    signs = np.resize([1.0, -2.0, 3.0], [case.shape[axis] for axis in case.others])

    def function(t):
        s = tf.reduce_sum(t, case.axis)
        ones = tf.ones_like(s) * 4
        flags = tf.constant(signs > 0)
        means, number = tf.reduce_mean(t * t, case.axis), tf.reduce_sum(t)
        return (
            tf.add_n([s, ones, means]),
            s - ones,
            ones - s + means,
            tf.where(flags, s, ones),
            tf.where(flags, ones, s) * 2,
            tf.where(s > 20, s, means),
            tf.where(number > 100, s, ones),
            s * signs / 4,
            s / means,
            s * means,
            tf.cast(s / 8, tf.int32),
            tf.cast(-s, tf.float64),
            signs * number,
        )

    case.check(function, whole=[])


def test_operands_of_fewer_axes_are_cut_where_the_others_are():
    def function(x):
        turned, rows = tf.transpose(x, [1, 0, 2]), x[:, 0]
        return turned * rows, rows + turned[:1, :, :1], tf.maximum(turned[:1, :, :1], rows)

    x = np.random.default_rng(3).normal(size=(7, 5, 4)).astype(np.float32)
    report = check(function, x, replicas=[3])
    assert not [each for each in report.exchanged if each.why != "it is returned"]
