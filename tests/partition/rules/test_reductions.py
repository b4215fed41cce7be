import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check, compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import gradients, in_shares, numbers
from partition.samples import Sample, of_samples, sample

REDUCTIONS = ["sum", "mean", "max", "min", "prod", "euclidean_norm"]


def reduced(kind, *args, **kwargs):
    return getattr(tf.math, f"reduce_{kind}")(*args, **kwargs)


def over_axes(kind):
    def function(x):
        turned = tf.transpose(x, [1, 2, 0])
        return [
            reduced(kind, x, [-3, 1], keepdims=True),
            reduced(kind, turned, [0, 2]),
            reduced(kind, x, 1),
            reduced(kind, x, [-1], keepdims=True),
            reduced(kind, turned, [0, 1]),
            reduced(kind, x, []),
        ]

    return Sample(function, [(3, 2)])


def gradient(kind):
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            each = reduced(kind, x * x, [1])
            total = tf.reduce_sum(reduced(kind, each * [[1.0, 2.0]], 0) * [2.0, 3.0])
        return tape.gradient(total, x)

    # The gradients of a product and of a norm are made of operations of other families.
    return Sample(function, [(3, 2)], whole=None)


def merged(kind):
    def function(x):
        merged = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4])
        rows = tf.reshape(x, [tf.shape(x)[0] * 3, 4])
        return [reduced(kind, each, axis) for each in (merged, rows) for axis in (0, 1)]

    return Sample(function, [(3, 4)])


def of_dtype(dtype, kinds, tolerance=1e-5):
    def function(x):
        x = tf.complex(x, tf.reverse(x, [1])) if dtype.is_complex else x
        found = [reduced(kind, tf.cast(x, dtype), 0) for kind in kinds]
        return [tf.cast(each, tf.float32) if dtype == tf.float16 else each for each in found]

    return Sample(function, [(30,)], options={"tolerance": tolerance})


def of_axes_of_the_step(x):
    columns = 2 + tf.cast(x[0, 0] * 0, tf.int32)
    rows = tf.reshape(x, [tf.shape(x)[0], -1, columns])
    return [tf.reduce_mean(rows, [0, 1]), tf.reduce_mean(rows), tf.reduce_mean(rows, 1)]


def of_partial(x):
    total = tf.reduce_sum(x, 0)
    return [tf.reduce_sum(total, 1), tf.reduce_mean(total), tf.reduce_sum(total)]


def with_infinite_numbers(x):
    first = tf.one_hot(0, tf.shape(x)[0])[:, tf.newaxis]
    x += tf.where(first * [1.0, 1.0, 0.0, 0.0] > 0, [[np.inf, -np.inf, 0.0, 0.0]], 0.0)
    x += tf.where(tf.reverse(first, [0]) * [0.0, 0.0, 1.0, 0.0] > 0, np.nan, 0.0)
    return [reduced(kind, x, 0) for kind in ("sum", "mean", "max")]


SAMPLES = {
    **{f"{kind} over axes": over_axes(kind) for kind in REDUCTIONS},
    **{f"{kind} and its gradient": gradient(kind) for kind in REDUCTIONS},
    **{f"{kind} of merged axes": merged(kind) for kind in ("sum", "mean", "max")},
    **{
        f"{dtype.name} numbers": of_dtype(dtype, ("sum", "mean", "prod"))
        for dtype in (tf.complex64, tf.complex128)
    },
    "float64 numbers": of_dtype(tf.float64, ("sum", "mean", "min"), 1e-14),
    "half precision": of_dtype(tf.float16, ("sum", "mean"), 2e-3),
    "Sum and Mean travel together": Sample(
        lambda x: [tf.reduce_sum(x), tf.reduce_mean(x, 0), tf.nn.l2_loss(x)], sends=["sum"]
    ),
    "Sum of a partial": Sample(of_partial, [(3, 2)], sends=["sum"]),
    "Max of a partial": Sample(lambda x: tf.reduce_max(tf.reduce_sum(x, 0)), [(3, 2)]),
    "Mean over axes of the step": Sample(of_axes_of_the_step, [(6,)], whole=None),
    "Sum over an axis that the step computes": Sample(
        lambda x: tf.reduce_sum(x, tf.cast(tf.reduce_max(x) * 0, tf.int32)), whole=["Sum"]
    ),
    "EuclideanNorm of whole numbers": Sample(
        lambda x: tf.math.reduce_euclidean_norm(tf.cast(10 * x, tf.int32), 0),
        whole=["EuclideanNorm"],
    ),
    "Mean of whole numbers": Sample(
        lambda x: tf.reduce_mean(tf.cast(10 * x, tf.int64), 0), whole=["Mean"]
    ),
    "infinite numbers": Sample(with_infinite_numbers),
}
VARIANTS = {
    *(name for name in SAMPLES if name.split()[0] in ("min", "prod", "euclidean_norm")),
    *("mean of merged axes", "max of merged axes", "complex128 numbers"),
}
test_reductions_are_those_of_one_device = of_samples(SAMPLES, SAMPLES.keys() - VARIANTS)


@in_shares
@pytest.mark.parametrize("dtype", tiers.first_of(np.int32, np.uint8, np.uint64))
def test_whole_numbers_of_any_size_are_reduced_exactly(dtype, length, replicas):
    def function(x):
        return [reduced(kind, x, 0) for kind in ("sum", "max", "prod")]

    check(
        function,
        37 * numbers(length, 3).astype(dtype) + np.arange(3, dtype=dtype),
        replicas=replicas,
    )


def test_a_sum_over_no_axes_is_not_computed():
    def gradient(x, scale):
        with tf.GradientTape() as tape:
            tape.watch([x, scale])
            y = tf.exp(x) * scale  # may be broadcast, as far as the trace knows
        return tape.gradient(y, [x, scale])

    x, scale = np.random.default_rng(0).normal(size=(2, 7, 3)).astype("f")
    traced = tf.function(gradient, input_signature=[tf.TensorSpec([None, 3])] * 2)
    operations = traced.get_concrete_function().graph.get_operations()
    assert [each.type for each in operations].count("Sum") == 2
    check(gradient, x, scale)
    partitioned = strategy(3).partitioned(gradient)
    partitioned(x, scale)
    program = partitioned._latest.program
    nodes = [each for function in program.functions for each in function.node_def]
    assert "Sum" not in {each.op for each in nodes}


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_norm_over_no_axes_gives_magnitudes(dtype):
    def norms(x):
        return tf.raw_ops.EuclideanNorm(input=tf.cast(x, dtype) * scale, axis=no_axes)

    scale, no_axes = tf.constant(-1.0 if dtype == "float32" else 1j, dtype), np.zeros(0, "i4")
    x = np.random.default_rng(0).normal(size=(7, 3)).astype("f")
    check(norms, x)
    np.testing.assert_allclose(strategy(3).partitioned(norms)(x), np.abs(x), rtol=1e-6)


@in_shares
@pytest.mark.parametrize("kind", ["all", "any"])
def test_truths_are_reduced(kind, length, replicas):
    def function(x):
        return [reduced(kind, x, axis) for axis in (0, [1])]

    truths = [[True, False, True], [True, False, False], [True, True, False]]
    check(function, np.array(truths * 3)[:length], replicas=replicas)


@in_shares
def test_scalars_in_half_precision_are_summed_in_float32(length, replicas):
    def function(x):
        return [tf.reduce_sum(x), tf.reduce_mean(x), tf.nn.l2_loss(x)]

    def in_float32(x):
        return [tf.cast(each, tf.float16) for each in function(tf.cast(x, tf.float32))]

    x = numbers(length, 30, dtype=np.float16)
    expected = in_float32(tf.constant(x))
    found = strategy(*replicas).partitioned(function)(x)
    compare(expected, found, "float32", exact=True)


@of_drawn_batches
def test_every_reduction_of_any_axes_is_that_of_one_device_wherever_the_batch_is(case):
    every = [*range(case.rank)]
    axes = case.choose([[case.axis], every, case.others, every[1:], every[:-1], []])
    keep = case.choose([False, True])

    def function(t):
        whole_numbers, truths = tf.cast(t, tf.int32), t > 3
        found = [reduced(kind, t, axes, keepdims=keep) for kind in REDUCTIONS]
        found += [reduced(kind, whole_numbers, axes, keep) for kind in ("sum", "max", "min")]
        found += [reduced(kind, truths, axes, keep) for kind in ("all", "any")]
        below = [reduced(kind, -t, axes, keep) for kind in ("max", "min")]
        return [*found, *below, tf.nn.l2_loss(t)]

    case.check(function, whole=[])


@of_drawn_batches
def test_reductions_of_sums_of_any_batch_are_summands(case):
    axes = case.some(range(case.rank - 1))

    def function(t):
        s = tf.reduce_sum(t, case.axis)
        computed = tf.cast(tf.reduce_sum(t), tf.int32) * 0 + axes
        return [tf.reduce_sum(s, axes), tf.reduce_mean(s, axes), tf.reduce_sum(s, computed)]

    case.check(function)


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
