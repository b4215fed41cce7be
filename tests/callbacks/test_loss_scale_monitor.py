"""`LossScaleMonitor` on one device, where nothing else of tfdp is at work."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import tfdp

pytestmark = [pytest.mark.slow, harness.in_one_process]


def fit_with(optimizer, data=None, steps_per_execution=1, **options):
    harness.start_over()
    model = harness.dense_model(optimizer, steps_per_execution=steps_per_execution)
    x, y = harness.regression_data()
    y = y.copy()
    y[[8, 22]] = np.nan
    given = {"x": x, "y": y, "batch_size": 7} if data is None else {"x": data(x, y)}
    monitor = tfdp.callbacks.LossScaleMonitor()
    return model.fit(
        **given, epochs=2, shuffle=False, verbose=0, callbacks=[monitor], **options
    ).history


def test_it_counts_the_steps_of_an_epoch_that_were_skipped():
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    history = fit_with(optimizer)
    assert history["skipped_steps"] == [2, 2]
    assert history["loss_scale"] == [16.0, 4.0]


def test_with_accumulation_it_counts_micro_batches():
    inner = optimizers.SGD(0.01, gradient_accumulation_steps=2)
    history = fit_with(optimizers.LossScaleOptimizer(inner, initial_scale=64.0))
    assert history["skipped_steps"] == [2, 2]


@pytest.mark.parametrize(
    ("executed", "options"),
    [(2, {}), (2, {"steps_per_epoch": 5}), (3, {"steps_per_epoch": 12})],
    ids=["the last is short", "the last is long", "the data end before"],
)
def test_it_does_not_count_what_keras_does_not_say(executed, options):
    def repeated(x, y):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
        return data.repeat() if options.get("steps_per_epoch") == 5 else data

    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    history = fit_with(optimizer, repeated, executed, **options)
    assert "loss_scale" in history
    assert "skipped_steps" not in history


def test_whole_executions_are_counted():
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    assert fit_with(optimizer, steps_per_execution=5)["skipped_steps"] == [2, 2]


def test_data_of_unknown_length_are_counted_step_by_step():
    def stream(x, y):
        return tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(7)

    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    assert fit_with(optimizer, stream)["skipped_steps"] == [2, 2]


def test_an_optimizer_without_a_loss_scale_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"needs a model whose optimizer.* received one with SGD"):
        fit_with(optimizers.SGD(0.01))


def test_the_policy_mixed_float16_is_scaled_by_keras():
    keras.config.set_dtype_policy("mixed_float16")
    dense = keras.layers.Dense(1, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input([4]), dense])
    model.compile("sgd", "mse")
    data = np.ones([8, 4], "float32"), np.full([8, 1], 0.25, "float32")
    monitor = tfdp.callbacks.LossScaleMonitor()
    history = model.fit(*data, callbacks=[monitor], verbose=0).history
    assert history["loss_scale"] == [2.0**15]
