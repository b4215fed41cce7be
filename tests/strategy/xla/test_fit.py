"""`fit` under XLAStrategy, around its steps: what callbacks get, and what failing data leave."""

import keras
import numpy as np
import pytest
import tensorflow as tf

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[40, 4]).astype("float32"), RNG.normal(size=[40, 1]).astype("float32")


class LogsPredictions(keras.Model):
    """A model whose steps log more than numbers."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        return super().train_step(data) | {"predictions": self(data[0])}


class Keeps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(logs["predictions"])


def logged(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = LogsPredictions()
        model.compile("sgd", "mse")
    kept = Keeps()
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[kept])
    return kept.logs


def test_callbacks_are_given_what_they_are_on_one_device(on_devices):
    expected, found = logged(tf.distribute.get_strategy()), logged(on_devices(2))
    assert {type(each) for each in found} == {type(each) for each in expected}
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def trained_until_data_fail(strategy, steps_per_execution, batches):
    """Returns the weights that are left, and the number of updates."""

    def rows():
        yield from (
            (X[start : start + 8], Y[start : start + 8]) for start in range(0, 8 * batches, 8)
        )
        raise ValueError("no more of them")

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    specs = tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no more of them"):
        model.fit(tf.data.Dataset.from_generator(rows, output_signature=specs), verbose=0)
    return *model.get_weights(), np.array(model.optimizer.iterations)


def test_batches_before_an_error_of_the_data_are_trained_on(on_devices):
    expected = trained_until_data_fail(on_devices(1), 1, 4)
    found = trained_until_data_fail(on_devices(2), 3, 4)
    assert found[-1] == 4
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-5)
