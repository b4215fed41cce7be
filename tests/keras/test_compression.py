"""Compressed gradients: which are, what of a step is not, and what acts on the decompressed sum.

The data are whole numbers whose gradients float32 holds exactly and 16 bits do not: NumPy says what
becomes of them.
"""

import harness
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from programs.linear import (
    EXAMPLES,
    REPLICAS,
    ROWS,
    OwnStep,
    data,
    fit,
    kernel_gradients,
    made,
    sgd,
    weights,
)

import tfdp
from tfdp.compression import Cast

BFLOAT16 = Cast("bfloat16")

# For tests of the mechanism within one process; the first test runs across processes, too.
with_two_replicas = harness.in_one_process


def bfloat16(value):
    return np.asarray(value, "float32").astype(ml_dtypes.bfloat16)


def trained(make_optimizer, batches, compression=BFLOAT16, **options):
    """The model without a bias after a step for each of `batches`, and the losses of all."""
    model = made(make_optimizer, compression, use_bias=False, **options)
    return model, fit(model, batches)


@pytest.mark.slow
@pytest.mark.telling
def test_gradients_travel_in_16_bits_and_all_else_whole():
    x, rows, y = data()
    model, losses = trained(sgd, [(x, rows, y)] * 2)
    first, second = kernel_gradients(x, rows, y)
    summed = (bfloat16(first) + bfloat16(second)).astype("float32")
    assert np.any(summed != first + second), "the cast must show"
    table = np.zeros((ROWS, 2), "float32")
    np.add.at(table, rows[:, 0], -bfloat16(y / y.size).astype("float32"))
    # The loss is linear: both steps have the same gradients.
    np.testing.assert_array_equal(weights(model), -2 * summed)
    np.testing.assert_array_equal(weights(model, "table"), 2 * table)
    outputs = x @ -summed.astype("float64") + table[rows[:, 0]]
    np.testing.assert_allclose(losses, [0.0, np.mean(outputs * y)], rtol=1e-6)


@pytest.mark.slow
@with_two_replicas
def test_a_window_is_compressed_once_and_clipped_after_it():
    batches = [data(1), data(2)]
    model, _ = trained(lambda: sgd(global_clipnorm=1e4, gradient_accumulation_steps=2), batches)
    # Each replica's mean over the window.
    gradients = np.array([kernel_gradients(*batch) for batch in batches])
    means = gradients.mean(axis=0)
    kernel = (bfloat16(means[0]) + bfloat16(means[1])).astype("float32")
    each = [(bfloat16(a) + bfloat16(b)).astype("float32") for a, b in gradients]
    assert np.any(kernel != sum(each) / 2), "a cast for each step would show"
    table = np.zeros((ROWS, 2), "float32")
    for side in range(REPLICAS):
        own = np.zeros_like(table)
        for _, rows, y in batches:
            np.add.at(own, np.split(rows, 2)[side][:, 0], np.split(y, 2)[side] / y.size / 2)
        table += bfloat16(own).astype("float32")
    norm = np.sqrt(np.sum(kernel.astype("float64") ** 2) + np.sum(table.astype("float64") ** 2))
    assert norm > 1e4, "the threshold must bite"
    np.testing.assert_allclose(weights(model), -kernel * 1e4 / norm, rtol=1e-6)


@pytest.mark.slow
@with_two_replicas
def test_a_sum_that_overflows_float16_is_skipped_by_all_replicas():
    x, rows, y = data()
    # Neither replica's gradient times the scale exceeds 65504, but their sum does.
    x, y = np.ones_like(x), np.full_like(y, 100.0)

    def scaled():
        return optimizers.LossScaleOptimizer(sgd(), initial_scale=2048.0)

    model, _ = trained(scaled, [(x, rows, y)], Cast("float16"))
    optimizer = model.optimizer
    assert float(harness.global_value(optimizer.dynamic_scale)) == 1024.0
    np.testing.assert_array_equal(weights(model), 0.0)
    model.fit([x, rows], y, batch_size=EXAMPLES, verbose=0)
    np.testing.assert_array_equal(weights(model), -50.0)
    assert float(harness.global_value(optimizer.dynamic_scale)) == 1024.0


@pytest.mark.slow
@with_two_replicas
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optimizers.LossScaleOptimizer(sgd(gradient_accumulation_steps=2)),
        pytest.param(
            lambda: sgd(loss_scale_factor=8.0, gradient_accumulation_steps=2),
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["a loss scale", "a loss scale factor"],
)
def test_windows_that_would_travel_without_their_scale_are_refused_in_float16(optimizer):
    with pytest.raises(ValueError, match=r'gradient_accumulation_steps.*Cast\("bfloat16"\)'):
        trained(optimizer, [data()], Cast("float16"))


@pytest.mark.slow
@with_two_replicas
def test_what_a_step_of_ones_own_gives_to_the_optimizer_is_compressed():
    x, rows, y = data()
    model, _ = trained(sgd, [(x, rows, y)], model=OwnStep)
    first, second = kernel_gradients(x, rows, y)
    summed = (bfloat16(first) + bfloat16(second)).astype("float32")
    np.testing.assert_array_equal(weights(model), -summed)


@pytest.mark.slow
@with_two_replicas
def test_a_loop_of_ones_own_compresses_what_it_gives_to_an_optimizer_and_sums_the_rest_whole():
    strategy = harness.strategy(REPLICAS, compression=BFLOAT16)
    with strategy.scope():
        weight = keras.Variable(np.zeros(1, "float32"))
        optimizer = sgd()
        optimizer.build([weight])
    own = harness.per_replica(strategy, [np.float32([1001.0]), np.float32([257.0])])

    @tf.function
    def step(value):
        total = tf.distribute.get_replica_context().all_reduce("SUM", value)
        optimizer.apply_gradients([(value, weight)])
        return total

    for total in strategy.experimental_local_results(strategy.run(step, args=(own,))):
        assert float(total[0]) == 1258.0
    assert harness.components(weight)[0] == -(bfloat16(1001.0) + bfloat16(257.0)).astype("float32")


@pytest.mark.slow
@with_two_replicas
def test_with_one_replica_nothing_travels_and_nothing_is_cast():
    x, rows, y = data()
    model, _ = trained(sgd, [(x, rows, y)], replicas=1)
    np.testing.assert_array_equal(weights(model), -sum(kernel_gradients(x, rows, y)))


def test_a_strategy_says_what_it_compresses_with_and_refuses_a_name():
    strategy = tfdp.DataParallelStrategy(devices=["CPU:0"], compression=Cast("float16"))
    assert strategy.describe()["options"]["compression"] == "Cast(dtype='float16')"
    with pytest.raises(TypeError, match=r"`compression` must be.*received 'bfloat16'.*Use"):
        tfdp.DataParallelStrategy(devices=["CPU:0"], compression="bfloat16")
