"""Branches and loops that ask for examples go as on one device, with all that is in them."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
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


def written_where_large(layer, x):
    """A weight, a state, and a variable of TensorFlow's."""
    for variable in (layer.scale, layer.state, layer.plain):

        def write(variable=variable):
            variable.assign(0.5 * variable)
            return 0

        tf.cond(tf.reduce_max(x) > 2.0, write, lambda: 0)
    return x


def noise(layer, like):
    return 0.1 * keras.random.normal(ops.shape(like), seed=layer.seeds)


def noise_in_loops(layer, x):
    """Over examples, over time, and in a scan."""

    def advance(time, state):
        return time + 1, state + x[:, time] + noise(layer, state)

    x = tf.map_fn(lambda row: row + noise(layer, row), x)
    scaled = ops.stack([x, 2.0 * x])
    x = ops.scan(lambda sums, each: (sums + each + noise(layer, each), each), x, scaled)[0]
    steps = tf.shape(x)[1]
    _, state = tf.while_loop(lambda time, _: time < steps, advance, (0, 0.0 * x[:, 0]))
    return state[:, None]


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


PROGRAMS = {
    "variables that are written": network(written_where_large),
    "loops that draw": network(noise_in_loops),
    "an update that asks the loss": skipping(lambda loss, _: loss < 5.0),
    "an update that asks gradients": skipping(lambda _, found: tf.linalg.global_norm(found) < 9.0),
}


@pytest.mark.parametrize("name", tiers.cases(PROGRAMS, ["an update that asks the loss"]))
def test_a_branch_or_a_loop_trains_as_on_one_device(name, trains_as_one_device):
    def use(model):
        acts = [layer for layer in model.layers if isinstance(layer, Acts)]
        return fit(model), [harness.components(layer.plain)[0] for layer in acts]

    trains_as_one_device(PROGRAMS[name], use)
