import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, compare, strategy

REDUCTIONS = ["sum", "mean", "max", "min", "prod", "euclidean_norm"]

# 7 examples on 3 replicas are uneven shares; of 2 examples one replica has none.
LENGTHS = [7, 2]


def numbers(length, *sizes, dtype=np.float32):
    """Numbers that tell a missing or doubled example: none is like another, and few are small."""
    generator = np.random.default_rng([length, *sizes])
    return generator.uniform(0.5, 1.5, [length, *sizes]).astype(dtype)


def reduced(kind, *args, **kwargs):
    return getattr(tf, f"reduce_{kind}")(*args, **kwargs)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reductions_over_any_axes_are_those_of_one_device(kind, length):
    def function(x):
        return [
            reduced(kind, x),
            reduced(kind, x, 0),
            reduced(kind, x, [-3, 2]),
            reduced(kind, x, [0, 1], keepdims=True),
            reduced(kind, x, 1),
            reduced(kind, x, [-1], keepdims=True),
            reduced(kind, tf.transpose(x, [1, 2, 0]), [0, 2]),
            reduced(kind, tf.transpose(x, [1, 2, 0]), [0, 1]),
            reduced(kind, x, []),
        ]

    check(function, numbers(length, 3, 2))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_gradients_of_reductions_are_those_of_one_device(kind, length):
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            each = reduced(kind, x * x, [1])
            total = tf.reduce_sum(reduced(kind, each * [[1.0, 2.0]], 0) * [2.0, 3.0])
        return tape.gradient(total, x)

    # The gradients of a product and of a norm are made of operations of other families.
    check(function, numbers(length, 3, 2), whole=None)


@pytest.mark.parametrize("length", LENGTHS)
def test_sums_and_means_travel_together_as_summands(length):
    report = check(lambda x: [tf.reduce_sum(x), tf.reduce_mean(x, 0)], numbers(length, 3))
    assert [each.kind for each in report.exchanged] == ["sum"]


@pytest.mark.parametrize("length", LENGTHS)
def test_reductions_of_summands_are_summands(length):
    def function(x):
        total = tf.reduce_sum(x, 0)
        return [tf.reduce_sum(total, 1), tf.reduce_mean(total), tf.reduce_sum(total)]

    report = check(function, numbers(length, 3, 2))
    assert [each.kind for each in report.exchanged] == ["sum"]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_of_a_sum_is_that_of_the_sum_of_all(length):
    check(lambda x: tf.reduce_max(tf.reduce_sum(x, 0)), numbers(length, 3, 2))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_whole_numbers_of_any_size_are_reduced_exactly(dtype, length):
    def function(x):
        return [reduced(kind, x, 0) for kind in ("sum", "max", "min", "prod")]

    check(function, 37 * numbers(length, 3).astype(dtype) + np.arange(3, dtype=dtype))


def test_means_of_whole_numbers_are_computed_whole():
    check(lambda x: tf.reduce_mean(x, 0), np.arange(14).reshape(7, 2), whole=["Mean"])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", ["all", "any"])
def test_truths_are_reduced(kind, length):
    def function(x):
        return [reduced(kind, x, axis) for axis in (None, 0, [1], [0, 1])]

    check(function, np.array([[True, False, True], [True, False, False]] * 4)[:length])
    check(function, np.eye(7, 3)[:length] > 0)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("length", LENGTHS)
def test_complex_numbers_are_reduced(dtype, length):
    def function(x):
        return [reduced(kind, x, 0) for kind in ("sum", "mean", "prod", "euclidean_norm")]

    x = numbers(length, 3) + 1j * numbers(length, 3)[::-1]
    check(function, x.astype(dtype))


@pytest.mark.parametrize("length", LENGTHS)
def test_numbers_in_float64_are_reduced_in_it(length):
    def function(x):
        return [reduced(kind, x, 0) for kind in REDUCTIONS] + [tf.nn.l2_loss(x)]

    check(function, numbers(length, 3, dtype=np.float64), tolerance=1e-14)


@pytest.mark.parametrize("length", LENGTHS)
def test_scalars_in_half_precision_are_summed_in_float32(length):
    def function(x):
        return [tf.reduce_sum(x), tf.reduce_mean(x), tf.nn.l2_loss(x)]

    def in_float32(x):
        return [tf.cast(each, tf.float16) for each in function(tf.cast(x, tf.float32))]

    x = numbers(length, 30, dtype=np.float16)
    expected = in_float32(tf.constant(x))
    for count in (2, 3):
        found = strategy(count).partitioned(function)(x)
        compare(expected, found, f"{count} replicas", exact=True)


@pytest.mark.parametrize("length", LENGTHS)
def test_means_in_half_precision_are_as_exact_as_one_device_s(length):
    def function(x):
        return [tf.cast(tf.reduce_mean(x, 0), tf.float32), tf.reduce_sum(x, 0)]

    check(function, numbers(length, 30, dtype=np.float16), tolerance=2e-3)


@pytest.mark.parametrize("length", LENGTHS)
def test_half_the_sum_of_squares_is_a_summand(length):
    report = check(lambda x: [tf.nn.l2_loss(x), tf.reduce_sum(x)], numbers(length, 3))
    assert [each.kind for each in report.exchanged] == ["sum"]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_a_batch_that_is_merged_with_other_axes_is_reduced(kind, length):
    def function(x):
        merged = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4])
        rows = tf.reshape(x, [tf.shape(x)[0] * 3, 4])
        return [reduced(kind, each, axis) for each in (merged, rows) for axis in (0, 1, [0, 1])]

    check(function, numbers(length, 3, 4))


def test_axes_that_are_known_only_when_the_step_runs_make_a_reduction_whole():
    def function(x):
        axis = tf.cast(tf.reduce_max(x) * 0, tf.int32)
        return tf.reduce_sum(x, axis)

    check(function, numbers(7, 3), whole=["Sum"])


@pytest.mark.parametrize("length", LENGTHS)
def test_infinite_numbers_and_those_that_are_none_are_kept(length):
    x = numbers(length, 4)
    x[0, 0], x[0, 1], x[1, 2] = np.inf, -np.inf, np.nan

    def function(x):
        return [reduced(kind, x, 0) for kind in REDUCTIONS]

    check(function, x)
