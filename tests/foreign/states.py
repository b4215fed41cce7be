"""Layers with a state or with random numbers of their own."""

import keras
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, FEATURES, LABELS, TARGETS, two_batches
from foreign.table import agrees, verified
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


@verified(two_batches(FEATURES, TARGETS))
def undeclared_state():
    """Keeps a maximum, which is no mean over the examples."""
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


@agrees()
def tensorflow_variable(strategy):
    """Keeps a state in a `tf.Variable`."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Centering(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, model.fit(FEATURES, TARGETS, BATCH_SIZE, verbose=0)


class Jitter(layers.Layer):
    """Adds noise that TensorFlow draws, not Keras."""

    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x))


@verified(two_batches(FEATURES, TARGETS))
def tensorflow_noise():
    """Draws from `tf.random`."""
    model = keras.Sequential([keras.Input((4,)), Jitter(), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class ActNorm(layers.Layer):
    """Sets its trainable scale and shift by the first batch (Glow, arXiv:1807.03039, 3.1)."""

    def build(self, shape):
        self.shift = self.add_weight(name="shift", shape=shape[-1:], initializer="zeros")
        self.scale = self.add_weight(name="scale", shape=shape[-1:], initializer="ones")
        self.is_set = self.add_weight(name="is_set", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        mean, deviation = ops.mean(x, axis=0), ops.std(x, axis=0) + 1e-6
        self.shift.assign(self.is_set * self.shift - (1.0 - self.is_set) * mean / deviation)
        self.scale.assign(self.is_set * self.scale + (1.0 - self.is_set) / deviation)
        self.is_set.assign(1.0)
        return x * self.scale + self.shift


@agrees()
def set_by_data(strategy):
    """Writes trainable weights from the batch, in a layer."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), ActNorm(), layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.fit(FEATURES, TARGETS, BATCH_SIZE, verbose=0)


class CenterLoss(keras.losses.Loss):
    """Draws the outputs of a class to a moving center (Wen et al., 2016, equations 2 to 4)."""

    def __init__(self):
        super().__init__(name="center_loss")
        self.centers = keras.Variable(ops.zeros((CLASSES, 2)), trainable=False, name="centers")

    def call(self, labels, outputs):
        one_hot = ops.one_hot(ops.reshape(labels, (-1,)), CLASSES)
        away = outputs - ops.matmul(one_hot, self.centers)
        counts = ops.reshape(ops.sum(one_hot, axis=0), (-1, 1))
        moves = ops.matmul(ops.transpose(one_hot), away) / (1.0 + counts)
        self.centers.assign(self.centers + 0.5 * moves)
        return 0.5 * ops.sum(ops.square(away), axis=-1)


@agrees()
def center_loss(strategy):
    """Keeps the state of a loss in a variable that the loss itself has made."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
        model.compile("sgd", CenterLoss())
    return model.fit(FEATURES, LABELS, BATCH_SIZE, verbose=0)


class Memory(layers.Layer):
    """Keeps the first examples of each batch in a part of a variable of TensorFlow's."""

    def build(self, shape):
        self.bank = tf.Variable(tf.zeros((4, shape[-1])), trainable=False)

    def call(self, x):
        self.bank[:2].assign(x[:2])
        return x + tf.reduce_mean(self.bank, axis=0)


@agrees()
def memory_bank(strategy):
    """Writes a part of a variable from the batch."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Memory(), layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.fit(FEATURES, TARGETS, BATCH_SIZE, verbose=0)
