"""Layers with a state or with random numbers of their own."""

import keras
import tensorflow as tf
from foreign.data import BATCH_SIZE, FEATURES, TARGETS, two_batches
from foreign.table import agrees, found, raises
from keras import layers, ops


class Counter(layers.Layer):
    """Counts the examples that it has seen, and follows their mean."""

    def __init__(self):
        super().__init__()
        state = {"shape": (), "initializer": "zeros", "trainable": False}
        self.count = self.add_weight(name="count", aggregation="sum", **state)
        self.mean = self.add_weight(name="mean", aggregation="mean", **state)

    def call(self, x):
        self.count.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x))
        return x - self.mean


@agrees()
def declared_state(strategy):
    """Has a layer that declares how its state goes together."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Counter(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, epochs=2, verbose=0)


class Maximum(layers.Layer):
    """Divides by the largest number that it has seen, and declares nothing."""

    def __init__(self):
        super().__init__()
        self.largest = self.add_weight(
            name="largest", shape=(), initializer="ones", trainable=False
        )

    def call(self, x):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(x))))
        return x / self.largest


@found("largest", two_batches(FEATURES, TARGETS))
def undeclared_state():
    """Keeps a maximum, which is no mean over replicas."""
    model = keras.Sequential([keras.Input((4,)), Maximum(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Centering(layers.Layer):
    """Keeps a moving mean in a variable of TensorFlow's."""

    def build(self, shape):
        self.mean = tf.Variable(tf.zeros(shape[-1:]), trainable=False)

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, axis=0))
        return x - self.mean


@raises("must be the same on all replicas")
def tensorflow_variable(strategy):
    """Has a state of which nothing could make one value for all replicas."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Centering(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, verbose=0)


class Jitter(layers.Layer):
    """Adds noise that TensorFlow draws, not Keras."""

    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x))


@found("`tf.random`", two_batches(FEATURES, TARGETS))
def tensorflow_noise():
    """Draws from `tf.random`, where each replica draws for itself."""
    model = keras.Sequential([keras.Input((4,)), Jitter(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
