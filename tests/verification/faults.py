"""Programs that do not train as on one device, one for each part, and what is at fault.

A step is traced as on one device; what they plant they read outside of it: the number of replicas.
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
      reason: What the likely reason holds.
    """

    build: Callable[[], keras.Model]
    part: str
    cause: str
    thing: object = None
    reason: str = ""
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
    """The number of replicas, as it is outside of a step; a step itself is one device's."""
    return tf.distribute.get_strategy().num_replicas_in_sync


class Scaling(keras.layers.Layer):
    """Computes by the number of replicas."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.replicas = replicas()

    def call(self, x):
        return x * self.replicas  # the line at fault


class Seeing(keras.layers.Layer):
    """Keeps what it has seen, by the number of replicas."""

    def build(self, shape):
        self.replicas = replicas()
        self.seen = self.add_weight(name="seen", trainable=False, initializer="zeros")

    def call(self, x):
        self.seen.assign(keras.ops.mean(keras.ops.abs(x)) * self.replicas)
        return x


class SeeingOtherwise(keras.layers.Layer):
    """Keeps the number of replicas as an imaginary part, or as a text."""

    def __init__(self, kept, **kwargs):
        super().__init__(**kwargs)
        self.kept, self.replicas = kept, replicas()

    def build(self, shape):
        start = tf.fill([], "") if self.kept == "string" else tf.zeros([], self.kept)
        self.seen = self.add_weight(
            [], lambda *_, **__: start, self.kept, name="seen", trainable=False
        )

    def call(self, x):
        is_text = self.kept == "string"
        seen = tf.as_string(self.replicas) if is_text else tf.complex(1.0, 1.0 * self.replicas)
        self.seen.assign(seen)
        return x


def share_of_loss():
    """A loss that is divided by the number of replicas."""
    count = replicas()

    def share(y_true, y_pred):
        return keras.ops.square(y_true - y_pred) / count

    return share


class ScaledGradients(keras.Model):
    """Multiplies gradients by the number of replicas."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.replicas = replicas()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [gradient * self.replicas for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class OwnSteps(keras.optimizers.SGD):
    """Updates by the number of replicas."""

    def build(self, variables):
        super().build(variables)
        self.replicas = replicas()

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.replicas, variable, learning_rate)


class OwnCount(keras.optimizers.SGD):
    """Keeps the number of replicas, and does nothing with it."""

    def build(self, variables):
        super().build(variables)
        self.replicas = replicas()
        self.kept = self.add_variable([], name="kept")

    def apply(self, gradients, variables=None):
        super().apply(gradients, variables)
        self.kept.assign(self.replicas)


class Shares(keras.metrics.Metric):
    """Counts batches of replicas."""

    def __init__(self, name="shares"):
        super().__init__(name=name)
        self.replicas = replicas()
        self.shares = self.add_weight(name="shares", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.shares.assign_add(self.replicas)

    def result(self):
        return self.shares


def faster():
    """Has a rate for so many replicas."""
    return dense(optimizer=keras.optimizers.SGD(0.1 * replicas()))


FAULTS = {
    "layer": Fault(
        lambda: dense(Scaling(name="own")), "layer output", "`own`", Scaling, "faults.py:"
    ),
    "state": Fault(
        lambda: dense(Seeing(name="own")), "layer state", "`own/seen`", Seeing, "layer keeps"
    ),
    **{
        f"state of {kept}": Fault(
            lambda kept=kept: dense(SeeingOtherwise(kept, name="own")),
            *("layer state", "`own/seen`", SeeingOtherwise, "layer keeps"),
        )
        for kept in ("complex64", "string")
    },
    "loss": Fault(
        lambda: dense(loss=share_of_loss()), "loss", "`share`", share_of_loss(), "the loss does not"
    ),
    "gradients": Fault(
        lambda: dense(kind=ScaledGradients),
        "gradients",
        "`ScaledGradients.train_step`",
        ScaledGradients.train_step,
        "the gradients do not",
    ),
    "update": Fault(
        lambda: dense(optimizer=OwnSteps(0.1)), "weights", "`OwnSteps`", OwnSteps, "update does not"
    ),
    "slot": Fault(
        lambda: dense(optimizer=OwnCount(0.1)), "optimizer state", "`OwnCount`", OwnCount, "keeps"
    ),
    "metric": Fault(
        lambda: dense(metrics=[Shares()]), "metrics", "`shares`", Shares, "the metric does not"
    ),
    "rate": Fault(
        faster, "optimizer state", "`sgd/learning_rate`", None, "another program", step=0
    ),
}
