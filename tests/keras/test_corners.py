"""Corners between the parts: each once trained other than on one device."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfdp

X, Y = harness.regression_data(7)


class Own(keras.Model):
    """A `train_step` with a Keras loss that also asks for the number of replicas."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(Y.shape[1])
        self.steps = keras.metrics.Sum(name="steps")
        self.last = keras.metrics.Mean(name="last")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            total = loss + 0.1 * ops.mean(self(x)) / replicas
        self.optimizer.apply(
            tape.gradient(total, self.trainable_variables), self.trainable_variables
        )
        self.steps.update_state(1)
        self.last.update_state(loss, sample_weight=1.0)
        return {"steps": self.steps.result(), "last": self.last.result()}


def own(trained):
    trained.compile(keras.optimizers.SGD(0.1), "mse")
    return trained


def test_a_step_that_asks_for_the_number_of_replicas_trains_as_on_one_device(trains_as_one_device):
    trains_as_one_device(
        lambda: own(Own()), lambda model: harness.fit_arrays(model, X, Y, batch_size=4, epochs=2)
    )


def test_an_inner_optimizer_made_outside_the_scope_is_named():
    inner = keras.optimizers.SGD(0.1, name="outside")
    with harness.scope(2):
        model = harness.dense_model(keras.optimizers.LossScaleOptimizer(inner))
    with pytest.raises((tfdp.errors.ScopeError, RuntimeError), match=r"outside|scope|Mixing"):
        harness.fit_arrays(model)


@harness.in_one_process
def test_what_has_no_axis_to_cut_along_goes_to_every_replica():
    batches = tf.data.Dataset.from_tensor_slices(X).batch(4).map(lambda x: (x, 0.5))
    strategy = harness.strategy(2)
    seen = [
        (strategy.experimental_local_results(x), strategy.experimental_local_results(half))
        for x, half in strategy.experimental_distribute_dataset(batches)
    ]
    rows = [len(part) for parts, _ in seen for part in parts]
    assert rows == [2, 2, 2, 1]
    assert [float(h) for _, halves in seen for h in halves] == [0.5] * 4


def test_float8_under_several_replicas_is_refused():
    with harness.scope(2):
        model = keras.Sequential([keras.Input([8]), layers.Dense(8)])
        model.quantize("float8")
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="mixed_bfloat16"):
        model.fit(np.ones([8, 8]), np.ones([8, 8]), verbose=0)
