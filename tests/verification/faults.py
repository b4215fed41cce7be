"""Programs that train otherwise than on one device, one a part of a step, and what is at fault.

A step is one program, which is as on one device whatever is in it. What these plant is another
program: `build` makes it of the number of replicas, as `verify` cannot know.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

FEATURES = 4
SIZES = (7, 8, 5)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A program, and what `verify` must say of it.

    Attributes:
      build: The program.
      part: What parts first.
      step: When.
      cause: What the named cause holds.
      thing: A class or function whose line the cause must name; None: it is no line's.
    """

    build: Callable[[], keras.Model]
    part: str
    cause: str
    thing: object = None
    step: int = 1


def batches(sizes=SIZES):
    """Uneven batches of inputs of unequal scale."""
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(size, FEATURES)).astype("float32") for size in sizes]
    return [(x, np.sin(x.sum(1, keepdims=True)) + 0.5 * x[:, :1]) for x in inputs]


def dense(*layers, optimizer=None, loss="mse", metrics=(), kind=keras.Model, **compile_options):
    """A model of two dense layers around `layers`, compiled."""
    inputs = keras.Input([FEATURES])
    x = keras.layers.Dense(3, activation="tanh", name="first")(inputs)
    for layer in layers:
        x = layer(x)
    model = kind(inputs, keras.layers.Dense(1, name="last")(x))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9) if optimizer is None else optimizer
    model.compile(optimizer, loss, metrics=list(metrics) or None, **compile_options)
    return model


def replicas():
    """The number of replicas; 1 on one device."""
    return float(tf.distribute.get_strategy().num_replicas_in_sync)


class Scaling(keras.layers.Layer):
    """Multiplies by the number of replicas."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.factor = replicas()

    def call(self, x):
        return self.factor * x


class Seeing(Scaling):
    """Keeps what it has seen, times the number of replicas."""

    def build(self, shape):
        self.seen = self.add_weight(name="seen", trainable=False, initializer="zeros")

    def call(self, x):
        self.seen.assign(self.factor * keras.ops.mean(keras.ops.abs(x)))
        return x


class ScaledLoss(keras.losses.Loss):
    """Squares times the number of replicas."""

    def __init__(self):
        super().__init__(name="scaled_loss")
        self.factor = replicas()

    def call(self, y_true, y_pred):
        return self.factor * keras.ops.mean(keras.ops.square(y_true - y_pred), -1)


class ScaledGradients(keras.Model):
    """Multiplies gradients by the number of replicas."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = replicas()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [self.factor * gradient for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class OwnSteps(keras.optimizers.SGD):
    """Multiplies updates by the number of replicas."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = replicas()

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(self.factor * gradient, variable, learning_rate)


class OwnCount(OwnSteps):
    """Keeps the number of replicas, and does nothing with it."""

    def build(self, variables):
        super().build(variables)
        self.kept = self.add_variable([], name="kept")

    def apply(self, gradients, variables=None):
        super().apply(gradients, variables)
        self.kept.assign(self.factor)

    def update_step(self, gradient, variable, learning_rate):
        keras.optimizers.SGD.update_step(self, gradient, variable, learning_rate)


class Calls(keras.metrics.Metric):
    """Counts batches, each once for each replica."""

    def __init__(self, name="calls"):
        super().__init__(name=name)
        self.calls = self.add_weight(name="calls", initializer="zeros")
        self.factor = replicas()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.calls.assign_add(self.factor)

    def result(self):
        return self.calls


def faster():
    """Asks for the number of replicas."""
    return dense(optimizer=keras.optimizers.SGD(0.1 * replicas()))


FAULTS = {
    "layer": Fault(lambda: dense(Scaling(name="own")), "layer output", "`own`", Scaling),
    "state": Fault(lambda: dense(Seeing(name="own")), "layer state", "`own/seen`", Seeing),
    "loss": Fault(lambda: dense(loss=ScaledLoss()), "loss", "`ScaledLoss`", ScaledLoss),
    "gradients": Fault(
        lambda: dense(kind=ScaledGradients),
        "gradients",
        "`ScaledGradients.train_step`",
        ScaledGradients.train_step,
    ),
    "update": Fault(lambda: dense(optimizer=OwnSteps(0.1)), "weights", "`OwnSteps`", OwnSteps),
    "slot": Fault(
        lambda: dense(optimizer=OwnCount(0.1)), "optimizer state", "`OwnCount`", OwnCount
    ),
    "metric": Fault(lambda: dense(metrics=[Calls()]), "metrics", "`calls`", Calls),
    "rate": Fault(faster, "optimizer state", "`sgd/learning_rate`", None, step=0),
}
