"""What replicas must do alike is not left to a branch or a loop that asks their own examples."""

import logging

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

RNG = np.random.default_rng(4)
X = RNG.normal(size=(9, 3, 4)).astype("float32")
Y = X.sum((1, 2))[:, None]


def fit(model):
    return harness.fit_arrays(model, X, Y, batch_size=4)


class Acts(layers.Layer):
    """Calls `act` with itself and its inputs."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.seeds = keras.random.SeedGenerator(3)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.state = self.add_weight(name="state", shape=(), initializer="ones", trainable=False)
        self.plain = tf.Variable(1.0, trainable=False)

    def call(self, x, training=False):
        return self.act(self, x) if training else x


def network(act):
    def build():
        sizes = [keras.Input((None, 4)), Acts(act), layers.GlobalAveragePooling1D()]
        model = keras.Sequential([*sizes, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    return build


def written_where_large(name):
    def act(layer, x):
        def write():
            variable = getattr(layer, name)
            variable.assign(0.5 * variable)
            return 0

        tf.cond(tf.reduce_max(x) > 2.0, write, lambda: 0)
        return x

    return act


def noise(layer, like):
    return 0.1 * keras.random.normal(ops.shape(like), seed=layer.seeds)


def noise_in_a_loop_over_examples(layer, x):
    return tf.map_fn(lambda row: row + noise(layer, row), x)


def noise_in_a_loop_over_time(layer, x):
    def advance(time, state):
        return time + 1, state + x[:, time] + noise(layer, state)

    steps = tf.shape(x)[1]
    _, state = tf.while_loop(lambda time, _: time < steps, advance, (0, 0.0 * x[:, 0]))
    return state[:, None]


def noise_in_a_scan(layer, x):
    scaled = ops.stack([x, 2.0 * x])
    return ops.scan(lambda sums, each: (sums + each + noise(layer, each), each), x, scaled)[0]


class Skipping(keras.Model):
    """Leaves updates out, where `decide` says so of the loss and the gradients."""

    def __init__(self, decide):
        super().__init__()
        self.network = keras.Sequential([keras.Input((3, 4)), layers.Flatten(), layers.Dense(1)])
        self.decide = decide

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)

        def update():
            self.optimizer.apply(gradients, self.trainable_variables)
            return 0

        tf.cond(self.decide(loss, gradients), update, lambda: 0)
        return {"loss": loss}


def skipping(decide):
    def build():
        model = Skipping(decide)
        model.compile(keras.optimizers.SGD(0.01))
        model.optimizer.build(model.trainable_variables)
        return model

    return build


REFUSED = {
    "a weight": (network(written_where_large("scale")), r"write 'acts/scale'.*all_reduce"),
    "a variable of TensorFlow's": (network(written_where_large("plain")), "write 'Variable"),
    "draws": (network(noise_in_a_loop_over_examples), r"draw random.*shape\(x\)\[0\]"),
    "an update": (skipping(lambda loss, _: loss < 5.0), r"update with '(sgd|SGD)'.*whole_batch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_only_some_replicas_would_do_is_refused(name):
    build, says = REFUSED[name]
    with pytest.raises(ValueError, match=says):
        fit(harness.build_in_scope(build, 2))


ALIKE = {
    "a loop over time": network(noise_in_a_loop_over_time),
    "a scan": network(noise_in_a_scan),
    "a branch that asks gradients": skipping(lambda _, found: tf.linalg.global_norm(found) < 9.0),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_all_replicas_do_alike_trains_as_on_one_device(name, trains_as_one_device):
    trains_as_one_device(ALIKE[name], fit)


@pytest.mark.slow
@harness.in_one_process
def test_a_state_that_only_some_replicas_write_is_named(caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        fit(harness.build_in_scope(network(written_where_large("state")), 2))
    assert "writes 'acts/state' from the batch" in caplog.text
