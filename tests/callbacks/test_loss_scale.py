"""`LossScaleMonitor` on one device, where nothing else of tfdp is at work."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import tfdp

pytestmark = harness.in_one_process


def fit_with(optimizer, data=None, **options):
    harness.start_over()
    model = harness.dense_model(optimizer, **options)
    x, y = harness.regression_data()
    y = y.copy()
    y[[8, 22]] = np.nan
    given = {"x": x, "y": y, "batch_size": 7} if data is None else {"x": data(x, y)}
    monitor = tfdp.callbacks.LossScaleMonitor()
    return model.fit(**given, epochs=2, shuffle=False, verbose=0, callbacks=[monitor]).history


def test_it_counts_the_steps_of_an_epoch_that_were_skipped():
    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    history = fit_with(optimizer)
    assert history["skipped_steps"] == [2, 2]
    assert history["loss_scale"] == [16.0, 4.0]


def test_with_accumulation_it_counts_micro_batches():
    inner = optimizers.SGD(0.01, gradient_accumulation_steps=2)
    history = fit_with(optimizers.LossScaleOptimizer(inner, initial_scale=64.0))
    assert history["skipped_steps"] == [2, 2]


def test_it_does_not_count_what_keras_does_not_say():
    def stream(x, y):
        whole = tf.data.Dataset.from_tensor_slices((x, y))
        return whole.filter(lambda x, y: True).batch(7)

    optimizer = optimizers.LossScaleOptimizer(optimizers.SGD(0.01), initial_scale=64.0)
    history = fit_with(optimizer, stream, steps_per_execution=2)
    assert history["loss_scale"] == [16.0, 4.0]
    assert "skipped_steps" not in history


def test_an_optimizer_without_a_loss_scale_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"needs a model whose optimizer.* received one with SGD"):
        fit_with(optimizers.SGD(0.01))


def test_the_policy_mixed_float16_is_scaled_by_keras():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
    monitor = tfdp.callbacks.LossScaleMonitor()
    history = model.fit(*data, callbacks=[monitor], verbose=0).history
    assert history["loss_scale"] == [2.0**15]
