"""What `fit` says before it starts, and what it adds to the logs."""

import logging

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers

import tfdp
from tfdp.keras import learning_rate_check
from tfdp.optimizers import PolynomialDecay, Warmup, scale_learning_rate

pytestmark = harness.in_one_process


def said(caplog, strategy, optimizer, batch_size, data=None, **options):
    """What is said before one `fit` of 64 examples; nothing is trained."""
    harness.start_over()
    with strategy.scope():
        model = harness.dense_model(optimizer())
    x, y = harness.regression_data(64)
    given = {"x": x, "y": y, "batch_size": batch_size} if data is None else {"x": data(x, y)}
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        learning_rate_check.prepare(model, given | options)
    return [record.getMessage() for record in caplog.records if record.name == "tfdp"]


def sgd():
    return optimizers.SGD(0.1)


def scaled(batch):
    """SGD with a rate that is meant for `batch` examples."""
    return lambda: optimizers.SGD(scale_learning_rate(0.01, base_batch=8, batch=batch))


@pytest.mark.slow
def test_fit_says_it(caplog):
    with harness.strategy(2).scope():
        model = harness.dense_model(scaled(16)())
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        harness.fit_arrays(model, batch_size=8)
        harness.fit_arrays(model, batch_size=8)
    said = [record for record in caplog.records if record.name == "tfdp"]
    assert len(said) == 1  # once is enough


def test_a_rate_that_was_not_scaled_is_nothing_to_say_anything_about(caplog):
    strategy = harness.strategy(2)
    assert not said(caplog, strategy, sgd, 8 * strategy.num_replicas_in_sync)
    assert type(strategy.num_replicas_in_sync) is int


@harness.needs_multi_optimizer
def test_several_optimizers_are_passed_by(caplog):
    chosen = optimizers.OptimizerMap(sgd(), {".*kernel": scaled(16)()})
    assert not said(caplog, harness.strategy(2), lambda: optimizers.MultiOptimizer(chosen), 8)


@pytest.mark.parametrize("dropped", [True, False])
def test_a_dataset_says_its_batch_too(dropped, caplog):
    def data(x, y):
        whole = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x, y)).shuffle(64)
        batches = whole.batch(16, drop_remainder=dropped)
        return (batches.map(lambda x, y: (x, y)) if dropped else batches).prefetch(1)

    strategy = harness.strategy(2)
    assert not said(caplog, strategy, scaled(16), None, data)
    assert len(said(caplog, strategy, scaled(32), None, data)) == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda rate: optimizers.SGD(rate),
        lambda rate: tfdp.optimizers.LAMB(rate),
        lambda rate: optimizers.SGD(optimizers.schedules.CosineDecay(rate, 100)),
        lambda rate: optimizers.SGD(
            optimizers.schedules.PiecewiseConstantDecay([10], [rate, 0.1 * rate])
        ),
        lambda rate: optimizers.Adam(Warmup(optimizers.schedules.CosineDecay(rate, 100), 10)),
        lambda rate: tfdp.optimizers.LARS(PolynomialDecay(rate, 100, warmup_steps=10)),
        lambda rate: optimizers.LossScaleOptimizer(optimizers.SGD(rate), initial_scale=2.0),
    ],
    ids=["a rate", "LAMB", "a schedule", "pieces", "warm-up", "LARS", "loss scaling"],
)
def test_a_scaled_rate_is_known_wherever_it_is_used(optimizer, caplog):
    strategy = harness.strategy(2)
    batch = 8 * strategy.num_replicas_in_sync
    rate = scale_learning_rate(0.01, base_batch=8, batch=batch)
    assert not said(caplog, strategy, lambda: optimizer(rate), batch)
    (text,) = said(caplog, strategy, lambda: optimizer(rate), 2 * batch)
    assert text.startswith("The learning rate was scaled for a batch of 16, but an update has 32")


def test_an_accumulated_batch_is_what_an_update_sees(caplog):
    strategy = harness.strategy(2)

    def accumulating(batch):
        rate = scale_learning_rate(0.01, base_batch=8, batch=batch)
        return lambda: optimizers.SGD(rate, gradient_accumulation_steps=4)

    assert not said(caplog, strategy, accumulating(64), 16)
    (text,) = said(caplog, strategy, accumulating(16), 16)
    assert "an update has 64 examples (a global batch of 16, accumulated 4 times)" in text


def test_a_rate_that_was_changed_or_is_set_by_a_callback_is_the_users_own(caplog):
    strategy = harness.strategy(2)

    def changed():
        optimizer = optimizers.SGD(scale_learning_rate(0.01, base_batch=8, batch=64))
        optimizer.learning_rate = 0.5
        return optimizer

    assert not said(caplog, strategy, changed, 8)

    def set_to_scaled():
        optimizer = optimizers.SGD(0.01)
        optimizer.learning_rate = scale_learning_rate(0.01, base_batch=8, batch=16)
        return optimizer

    assert not said(caplog, strategy, set_to_scaled, 16)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01)
    assert not said(caplog, strategy, scaled(32), 16, callbacks=[scheduler])


def test_batches_of_unknown_size_are_passed_by(caplog):
    strategy = harness.strategy(2)

    def generated(x, y):
        return harness.batches_of([16, 16], x, y)

    assert not said(caplog, strategy, scaled(32), None, generated)


@pytest.mark.parametrize(
    "data",
    [
        iter([]),
        None,
        [],
        {"a": np.ones([2]), 1: np.ones([2])},
        tf.data.Dataset.from_tensor_slices({"a": np.ones([4, 2])}).window(2),
        tf.data.Dataset.range(3).map(lambda x: (None, x)).batch(2),
        [[1.0, 2.0], [3.0, 4.0]],
    ],
    ids=["an iterator", "nothing", "empty", "mixed keys", "windows", "no input", "lists"],
)
def test_what_has_no_batch_that_can_be_told_is_passed_by(data):
    assert learning_rate_check.global_batch_size({"x": data}) in (None, 2)


def test_fewer_examples_than_a_batch_are_the_batch():
    assert learning_rate_check.global_batch_size({"x": np.ones([5, 2]), "batch_size": 7}) == 5
    assert (
        learning_rate_check.global_batch_size({"x": [np.ones([50, 2])] * 2, "batch_size": None})
        == 32
    )


def scaling_model():
    optimizer = optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=256.0, dynamic_growth_steps=3
    )
    return harness.dense_model(optimizer)


def with_overflows(model, **options):
    """Three epochs of five batches; the second and the fourth overflow."""
    x, y = harness.regression_data()
    y = y.copy()
    y[[8, 22]] = np.inf
    return harness.fit_arrays(model, x, y, epochs=3, **options)


@pytest.mark.slow
@pytest.mark.parametrize("steps", tiers.first_of(1, 5))
def test_loss_scale_and_skipped_steps_are_in_the_logs(steps, replicas):
    model = harness.build_in_scope(scaling_model, replicas)
    model.steps_per_execution = steps
    history = with_overflows(model)
    assert history["skipped_steps"] == [2, 2, 2]
    assert history["loss_scale"] == [64.0, 16.0, 4.0]


@pytest.mark.exhaustive("test_loss_scale_and_skipped_steps_are_in_the_logs")
def test_the_logs_are_those_of_one_device_with_the_callback(replicas):
    model = harness.build_in_scope(scaling_model)
    expected = with_overflows(model)  # the harness adds the callback
    actual = with_overflows(harness.build_in_scope(scaling_model, replicas))
    assert list(actual) == list(expected)
    harness.assert_close({**actual, "loss": 0, "mae": 0}, {**expected, "loss": 0, "mae": 0}, 0)


@pytest.mark.slow
def test_a_callback_of_the_users_own_sees_the_numbers_and_none_is_added_twice(replicas):
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["skipped_steps"])
    )
    model = harness.build_in_scope(scaling_model, replicas)
    with_overflows(model, callbacks=[record])
    assert seen == [2, 2, 2]
    arguments = {"callbacks": (tfdp.callbacks.LossScaleMonitor(), record), "x": np.ones([2, 2])}
    learning_rate_check.prepare(model, arguments)
    assert len(arguments["callbacks"]) == 2
    arguments["callbacks"] = record
    learning_rate_check.prepare(model, arguments)
    assert arguments["callbacks"][1:] == [record]


def test_without_loss_scaling_the_logs_are_keras_own(replicas):
    model = harness.build_in_scope(harness.dense_model, replicas)
    assert set(harness.fit_arrays(model)) == {"loss", "mae"}
