"""Compressions of updates in training: when they are used, and what becomes of their residuals.

The loss is linear in the weights, so that gradients do not depend on what was trained before, and
NumPy says what each step applies.
"""

import json
import logging
import math

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers
from programs import linear
from programs.linear import (
    EXAMPLES,
    REPLICAS,
    ROWS,
    OwnStep,
    data,
    kernel_gradients,
    product,
    sgd,
    weights,
)

import tfdp
from tfdp.callbacks.checkpoint import model_variables
from tfdp.compression import (
    BetweenHosts,
    ErrorFeedback,
    Int8,
    MomentumCorrection,
    PowerSGD,
    RandomK,
    TopK,
)
from tfdp.errors import GradientError

FEEDBACK = ErrorFeedback(TopK(1 / 3, smallest=1, exclude=["bias$", "embeddings$"]))

with_two_replicas = harness.in_one_process


def table_gradients(rows, y):
    """Each replica's gradient of the table, dense."""
    found = []
    for chosen, targets in zip(np.split(rows[:, 0], 2), np.split(y, 2), strict=True):
        found.append(np.zeros((ROWS, 2)))
        np.add.at(found[-1], chosen, targets / y.size)
    return found


def simulated(steps):
    """What is applied in each step, and the replicas' residuals at the end.

    Args:
      steps: For each step the replicas' gradients.
    """
    residuals = [np.zeros_like(own) for own in steps[0]]
    applied = []
    for gradients in steps:
        total = np.zeros_like(gradients[0])
        for rank, own in enumerate(gradients):
            corrected = own + residuals[rank]
            sent = np.zeros_like(corrected).ravel()
            count = math.ceil(corrected.size / 3)
            chosen = np.argsort(-np.abs(corrected).ravel())[:count]
            sent[chosen] = corrected.ravel()[chosen]
            residuals[rank] = corrected - sent.reshape(own.shape)
            total += sent.reshape(own.shape)
        applied.append(total)
    return applied, residuals


def made(make_optimizer, compression=FEEDBACK, **options):
    return linear.made(make_optimizer, compression, **options)


def fit(model, batches):
    linear.fit(model, batches)
    return model


def residuals(model):
    """Each replica's residual of the kernel, on this process."""
    found = [
        held
        for owner in (model.optimizer, getattr(model.optimizer, "inner_optimizer", None))
        if owner is not None
        for slots in vars(owner).get("tfdp_compression_slots", {}).values()
        for held in slots.values()
    ]
    (held,) = found
    return [copy.numpy() for copy in held.values]


@pytest.mark.slow
@pytest.mark.telling
def test_each_step_applies_the_largest_numbers_and_what_was_left_before():
    batches = [data(seed) for seed in range(3)]
    model = fit(made(sgd), batches)
    applied, left = simulated([kernel_gradients(*batch) for batch in batches])
    np.testing.assert_allclose(weights(model), -sum(applied), rtol=1e-5)
    mine = residuals(model)
    first = model.distribute_strategy.rank * len(mine)
    for found, expected in zip(mine, left[first:], strict=False):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1.0)
    # The bias is excluded, and the table's gradients are rows.
    table = np.zeros((ROWS, 2))
    for _, rows, y in batches:
        np.add.at(table, rows[:, 0], -y / y.size)
    np.testing.assert_allclose(weights(model, "table"), table, rtol=1e-6)
    bias = -sum(y.sum(0, "float64") / y.size for _, _, y in batches)
    np.testing.assert_allclose(model.get_layer("dense").bias, bias, rtol=1e-5)


@pytest.mark.slow
@with_two_replicas
def test_rows_of_a_table_are_compressed_as_a_dense_gradient():
    batches = [data(seed) for seed in range(3)]
    compression = ErrorFeedback(TopK(1 / 3, smallest=1, exclude=["bias$"], largest_table=ROWS))
    model = fit(made(sgd, compression), batches)
    applied, _ = simulated([table_gradients(rows, y) for _, rows, y in batches])
    np.testing.assert_allclose(weights(model, "table"), -sum(applied), rtol=1e-5)
    applied, _ = simulated([kernel_gradients(*batch) for batch in batches])
    np.testing.assert_allclose(weights(model), -sum(applied), rtol=1e-5)


@pytest.mark.slow
@with_two_replicas
def test_int8_trains_near_the_whole_and_rows_of_a_larger_table_are_whole(caplog):
    batches = [data(seed) for seed in range(2)]
    whole = -sum(sum(kernel_gradients(*batch)) for batch in batches)
    with caplog.at_level(logging.WARNING, "tfdp"):
        compression = ErrorFeedback(Int8(smallest=1, largest_table=ROWS - 1))
        model = fit(made(sgd, compression), batches)
    said = sum("tf.IndexedSlices" in record.message for record in caplog.records)
    assert said == (model.distribute_strategy.rank == 0)
    # Each of four quantizations is off by less than a level of its own numbers.
    np.testing.assert_allclose(weights(model), whole, atol=8 * np.abs(whole).max() / 127)
    assert np.any(weights(model) != whole)
    table = np.zeros((ROWS, 2))
    for _, rows, y in batches:
        np.add.at(table, rows[:, 0], -y / y.size)
    np.testing.assert_allclose(weights(model, "table"), table, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_step_applies_the_largest_numbers_and_what_was_left_before")
@with_two_replicas
def test_a_window_is_compressed_once():
    batches = [data(seed) for seed in range(4)]
    model = fit(made(lambda: sgd(gradient_accumulation_steps=2, clipnorm=1e7)), batches)
    gradients = [kernel_gradients(*batch) for batch in batches]
    windows = [
        [(one + other) / 2 for one, other in zip(*gradients[start : start + 2], strict=True)]
        for start in (0, 2)
    ]
    applied, left = simulated(windows)
    np.testing.assert_allclose(weights(model), -sum(applied), rtol=1e-5)
    for found, expected in zip(residuals(model), left, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1.0)


@pytest.mark.slow
@with_two_replicas
def test_a_step_that_loss_scaling_skips_leaves_residuals_and_the_next_goes_on_with_them():
    batches = [data(seed) for seed in range(3)]
    overflow = [np.array(part) for part in batches[1]]
    overflow[0][-1, 0] = np.inf  # on the second replica
    model = made(lambda: optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0))
    fit(model, [batches[0]])
    before, trained = residuals(model), weights(model)
    model.fit(
        [overflow[0], overflow[1]], overflow[2], batch_size=EXAMPLES, shuffle=False, verbose=0
    )
    assert float(harness.global_value(model.optimizer.dynamic_scale)) == 1.0
    np.testing.assert_array_equal(weights(model), trained)
    np.testing.assert_array_equal(residuals(model), before)
    fit(model, [batches[2]])
    applied, _ = simulated([kernel_gradients(*batches[0]), kernel_gradients(*batches[2])])
    np.testing.assert_allclose(weights(model), -sum(applied), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_step_applies_the_largest_numbers_and_what_was_left_before")
@with_two_replicas
def test_without_a_loss_scale_what_is_not_finite_reaches_all_replicas_and_no_residual():
    batches = [data(0), data(1)]
    batches[1][0][0, 0] = np.inf
    model = fit(made(sgd), batches[:1])
    before = residuals(model)
    fit(model, batches[1:])
    assert not np.isfinite(weights(model)).all()
    np.testing.assert_array_equal(residuals(model), before)


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_step_applies_the_largest_numbers_and_what_was_left_before")
@with_two_replicas
def test_on_one_host_nothing_is_compressed_between_hosts():
    batches = [data(seed) for seed in range(2)]
    between = ErrorFeedback(BetweenHosts(TopK(1 / 3, smallest=1)))
    model = fit(made(sgd, between), batches)
    whole = -sum(sum(kernel_gradients(*batch)) for batch in batches)
    np.testing.assert_allclose(weights(model), whole, rtol=1e-5)


class OwnApply(optimizers.SGD):
    """An optimizer that does something with gradients of the whole batch."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.sign(grad) for grad in grads], trainable_variables)


@pytest.mark.slow
@with_two_replicas
def test_what_a_step_of_ones_own_gives_to_the_optimizer_is_compressed():
    batch = data()
    model = fit(made(sgd, model=OwnStep), [batch])
    (applied,), _ = simulated([kernel_gradients(*batch)])
    np.testing.assert_allclose(weights(model), -applied, rtol=1e-5)


@pytest.mark.slow
@with_two_replicas
def test_what_an_optimizer_of_ones_own_uses_is_whole():
    x, rows, y = data()
    total = sum(kernel_gradients(x, rows, y))
    harness.start_over()
    with harness.strategy(REPLICAS, compression=FEEDBACK).scope():
        inputs = keras.Input((3,))
        own = keras.layers.Dense(2, kernel_initializer="zeros", name="dense")(inputs)
        model = keras.Model(inputs, own)
        model.compile(OwnApply(1.0), loss=product)
    model.fit(x, y, batch_size=EXAMPLES, verbose=0)
    np.testing.assert_array_equal(weights(model), -np.sign(total))


@pytest.mark.slow
@with_two_replicas
def test_an_apply_of_ones_own_before_a_window_closes_uses_wholes():
    everything = ErrorFeedback(TopK(1.0, smallest=1))
    model = made(lambda: OwnApply(1.0, gradient_accumulation_steps=2), everything)
    batches = [data(seed) for seed in range(2)]
    signs = [np.sign(sum(kernel_gradients(*each))) for each in batches]
    np.testing.assert_allclose(weights(fit(model, batches)), -sum(signs) / 2, rtol=1e-6)


class SignsLater(optimizers.SGD):
    def _backend_apply_gradients(self, grads, trainable_variables):
        super()._backend_apply_gradients([tf.sign(grad) for grad in grads], trainable_variables)


class LeavesOut(optimizers.SGD):
    """Updates nothing but matrices."""

    def _filter_empty_gradients(self, grads, variables):
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if len(v.shape) > 1]
        return [g for g, _ in pairs], [v for _, v in pairs]


@pytest.mark.slow
@pytest.mark.exhaustive("test_what_an_optimizer_of_ones_own_uses_is_whole")
@with_two_replicas
@pytest.mark.parametrize("kind, of", [(SignsLater, np.sign), (LeavesOut, lambda total: total)])
def test_what_a_method_of_ones_own_may_use_is_whole(kind, of):
    x, rows, y = data()
    total = sum(kernel_gradients(x, rows, y))
    model = fit(made(lambda: kind(1.0)), [(x, rows, y)])
    np.testing.assert_allclose(weights(model), -of(total), rtol=1e-6)


@pytest.mark.slow
@with_two_replicas
def test_a_method_of_ones_own_that_leaves_gradients_out_goes_with_no_momentum_of_compression():
    model = made(lambda: LeavesOut(1.0), MomentumCorrection(TopK(0.5)))
    with pytest.raises(GradientError, match="leaves some out"):
        fit(model, [data()])


class WithNorm(keras.Model):
    """Takes a gradient by hand for a metric, beside Keras' own step."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        kernel = self.get_layer("dense").kernel
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x) * y)
        norm = tf.norm(tape.gradient(loss, kernel))
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "norm": norm}


@pytest.mark.slow
@with_two_replicas
def test_a_gradient_by_hand_beside_keras_own_step_is_whole():
    x, rows, y = data()
    model = made(sgd, model=WithNorm)
    found = model.fit([x, rows], y, batch_size=EXAMPLES, shuffle=False, verbose=0).history
    norm = np.linalg.norm(sum(kernel_gradients(x, rows, y)))
    np.testing.assert_allclose(found["norm"], [norm], rtol=1e-5)
    applied, _ = simulated([kernel_gradients(x, rows, y)])
    np.testing.assert_allclose(weights(model), -applied[0], rtol=1e-5)


@pytest.mark.slow
@with_two_replicas
@pytest.mark.parametrize("replicas", tiers.first_of(2, 1))
def test_momentum_correction_is_sgd_with_momentum_where_nothing_is_left_out(replicas):
    least = 1 if replicas == 1 else 4096  # so that two replicas sum all whole
    harness.start_over()
    compression = MomentumCorrection(TopK(1 / 3, smallest=least), momentum=0.5)
    with harness.strategy(replicas, compression=compression).scope():
        inputs = keras.Input((3,))
        dense = keras.layers.Dense(2, kernel_initializer="zeros", name="dense")
        model = keras.Model(inputs, dense(inputs))
        model.compile(sgd(), loss=product)
    kernel, bias = [np.zeros((3, 2))], [np.zeros(2)]
    for x, _, y in [data(seed) for seed in range(3)]:
        model.fit(x, y, batch_size=EXAMPLES, shuffle=False, verbose=0)
        kernel.append(0.5 * kernel[-1] + sum(kernel_gradients(x, None, y)))
        bias.append(0.5 * bias[-1] + y.sum(0, "float64") / y.size)
    harness.assert_replicas_identical(model)
    np.testing.assert_allclose(weights(model), -sum(kernel), rtol=1e-5)
    np.testing.assert_allclose(dense.bias, -sum(bias), rtol=1e-5)


@pytest.mark.slow
@with_two_replicas
@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (lambda: OwnApply(1.0), "is the same on all replicas: it was summed before"),
        (
            sgd,
            r"'embeddings' is IndexedSlices of float32",
        ),
        (lambda: sgd(momentum=0.9), r"SGD with momentum=0\.9\. Use"),
        pytest.param(
            lambda: optimizers.AdamW(0.1),
            r"AdamW with beta_1=0\.9\. Use",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["own apply", "rows", "momentum", "a mean of gradients"],
)
def test_what_would_be_trained_without_momentum_or_with_two_is_refused(make_optimizer, message):
    corrected = MomentumCorrection(TopK(1 / 3, exclude=["embeddings$"], largest_table=ROWS - 1))
    with pytest.raises(ValueError, match=message):
        fit(made(make_optimizer, corrected), [data()])


@pytest.mark.slow
@with_two_replicas
@pytest.mark.parametrize(
    "wrap",
    tiers.first_of(optimizers.LossScaleOptimizer, lambda inner: inner),
    ids=["a loss scale", "plain"],
)
def test_a_loop_of_ones_own_builds_the_optimizer_and_compresses(wrap):
    strategy = harness.strategy(REPLICAS, compression=FEEDBACK)
    with strategy.scope():
        weight = keras.Variable(np.zeros(6, "float32"), name="weight")
        optimizer = wrap(sgd())
    gradients = [np.float32([6, 5, 1, 2, 3, 4]), np.float32([1, 2, 3, 30, 4, 5])]
    own = harness.per_replica(strategy, gradients)

    @tf.function
    def step(value):
        def update(value):
            scaled = optimizer.scale_loss(value)
            optimizer.apply_gradients([(scaled, weight)])

        strategy.run(update, args=(value,))

    for _ in range(2):
        step(own)
    applied, _ = simulated([gradients] * 2)
    for copy in harness.components(weight):
        np.testing.assert_array_equal(copy, -sum(applied))


@pytest.mark.slow
@with_two_replicas
def test_checkpoints_keep_residuals_and_on_other_replicas_their_sum():
    batches = [data(seed) for seed in range(2)]
    applied, left = simulated([kernel_gradients(*batch) for batch in batches])
    model = fit(made(sgd), batches)
    processes = model.distribute_strategy.extended.processes
    saved = dict(
        model_variables.wholes(processes, "a test", model_variables.copies(model, processes))
    )
    (name,) = [name for name in saved if name.startswith("other")]
    np.testing.assert_allclose(saved[name], left, rtol=1e-4, atol=1.0)
    for replicas in (2, 3, 1):
        other = made(sgd, replicas=replicas)
        with other.distribute_strategy.scope():
            other.optimizer.build(other.trainable_variables)
        model_variables.assign(other, saved, False, 0, replicas)
        found = residuals(other)
        assert len(found) == replicas
        np.testing.assert_allclose(np.sum(found, 0), np.sum(saved[name], 0), rtol=1e-5, atol=1.0)
        if replicas == 2:
            np.testing.assert_array_equal(found, saved[name])
        else:
            np.testing.assert_array_equal(found[1:], 0)  # the first has it
    # One replica applies what is left, and has no more.
    x, rows, y = data(5)
    fit(other, [(x, rows, y)])
    whole = -sum(applied) - sum(left) - sum(kernel_gradients(x, rows, y))
    np.testing.assert_allclose(weights(other), whole, rtol=1e-4)
    np.testing.assert_array_equal(residuals(other), [np.zeros((3, 2))])


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_step_applies_the_largest_numbers_and_what_was_left_before")
@with_two_replicas
def test_factors_of_low_rank_are_kept_for_the_next_update():
    harness.start_over()
    with harness.strategy(REPLICAS, compression=PowerSGD(1, smallest=1)).scope():
        layer = keras.layers.Dense(6, kernel_initializer="zeros", use_bias=False, name="dense")
        model = keras.Sequential([keras.Input((8,)), layer])
        model.compile(sgd(), loss=product)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(EXAMPLES, size)).astype("float32") for size in (8, 6))
    model.fit(x, y, batch_size=EXAMPLES, epochs=30, verbose=0)
    before = weights(model)
    model.fit(x, y, batch_size=EXAMPLES, verbose=0)
    # The power iteration has come to the best approximation.
    left, values, right = np.linalg.svd(x.T @ y / y.size)
    best = values[0] * np.outer(left[:, 0], right[0])
    np.testing.assert_allclose(before - weights(model), best, atol=1e-3 * values[0])


@with_two_replicas
@pytest.mark.parametrize(
    ("compression", "told"),
    [
        (ErrorFeedback(TopK(0.5, smallest=11)), True),
        (ErrorFeedback(TopK(0.5, smallest=10)), False),
        (MomentumCorrection(TopK(0.5)), True),
        (PowerSGD(2, smallest=1), True),
        (RandomK(0.5, smallest=1), False),
    ],
)
def test_a_compression_that_takes_no_gradient_says_so(compression, told, caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        model = made(sgd, compression)
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    (said,) = [each.getMessage() for each in caplog.records] or [None]
    assert (said is not None) == told
    assert not told or ("`smallest` of at most 10" in said and "dense/kernel" in said)


def test_a_strategy_takes_them_and_says_what_it_has():
    strategy = tfdp.DataParallelStrategy(devices=["CPU:0"], compression=FEEDBACK)
    assert "ErrorFeedback(inner=TopK(" in strategy.describe()["options"]["compression"]


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_step_applies_the_largest_numbers_and_what_was_left_before")
@with_two_replicas
def test_telemetry_has_the_bytes_and_the_norm_of_residuals_over_the_gradients(tmp_path):
    batches = [data(seed) for seed in range(2)]
    model = made(sgd)
    for number, (x, rows, y) in enumerate(batches):
        log = tfdp.callbacks.Telemetry(tmp_path / str(number), sample_every=1)
        model.fit([x, rows], y, batch_size=EXAMPLES, shuffle=False, verbose=0, callbacks=[log])
    lines = (tmp_path / "1" / "rank0.jsonl").read_text().splitlines()
    (step,) = [line for line in map(json.loads, lines) if line["kind"] == "step"]
    gradients = [kernel_gradients(*batch) for batch in batches]
    _, left = simulated(gradients)
    expected = np.linalg.norm(left) / np.linalg.norm(gradients[1])
    assert step["compression_error"] == pytest.approx(expected, rel=1e-4)
    # Two numbers with their places, to one other replica each; the bias; rows with their indices.
    bias, table = 2 * 4, EXAMPLES // 2 * (2 * 4 + 4)
    assert step["bytes_sent"] == 2 * (2 * 8 + bias + table)
