"""Programs that no library can train as on one device, one a mechanism, and what is at fault.

What they plant depends on the replica itself, or couples examples behind the library's back, so
that they stay at fault whatever tfdp makes exact.
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


def replica():
    """The number of this replica; 0 on one device."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def one_more(value):
    """Replica 0's value, twice that on replica 1, and so on."""
    return value * (1.0 + tf.cast(replica(), value.dtype))


class Drawing(keras.layers.Layer):
    """Noise from TensorFlow's generators."""

    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Centering(keras.layers.Layer):
    """Couples the examples of the batch."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


class Counting(keras.layers.Layer):
    """Counts its calls in Python."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = 0

    def call(self, x):
        def count(value):
            self.calls += 1
            return np.float32(self.calls) * value

        return tf.ensure_shape(tf.numpy_function(count, [x], tf.float32), x.shape)


class Seeing(keras.layers.Layer):
    """Keeps what replica 0 has seen, and says so."""

    def build(self, shape):
        self.seen = self.add_weight(
            name="seen", trainable=False, initializer="zeros", aggregation="only_first_replica"
        )

    def call(self, x):
        self.seen.assign(keras.ops.mean(keras.ops.abs(x)))
        return x


def contrastive(y_true, y_pred):
    """Each example against the others of its batch."""
    return -tf.nn.log_softmax(-tf.abs(y_true - tf.transpose(y_pred)))[:, 0]


class ScaledGradients(keras.Model):
    """Touches gradients by the replica's number, which is no tensor: only `verify` sees it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        factor = 1.0 + int(tf.get_static_value(replica()))
        gradients = [gradient * factor for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class OwnSteps(keras.optimizers.SGD):
    """Updates by the replica."""

    def apply(self, gradients, variables=None):
        self.factor = one_more(tf.constant(1.0))
        super().apply(gradients, variables)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.factor, variable, learning_rate)


class OwnCount(keras.optimizers.SGD):
    """Keeps a number of the replica's, and does nothing with it."""

    def build(self, variables):
        super().build(variables)
        self.kept = self.add_variable([], name="kept")

    def apply(self, gradients, variables=None):
        super().apply(gradients, variables)
        self.kept.assign(one_more(tf.constant(1.0)))


class Calls(keras.metrics.Metric):
    """Counts batches."""

    def __init__(self, name="calls"):
        super().__init__(name=name)
        self.calls = self.add_weight(name="calls", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.calls.assign_add(1.0)

    def result(self):
        return self.calls


def faster():
    """Asks for the number of replicas."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return dense(optimizer=keras.optimizers.SGD(0.1 * int(replicas)))


FAULTS = {
    "tf.random": Fault(
        lambda: dense(Drawing(name="own")), "layer output", "`own`", Drawing, "draws from `tf.rand"
    ),
    "a mean over the batch": Fault(
        lambda: dense(Centering(name="own")), "layer output", "`own`", Centering, "other examples"
    ),
    "Python": Fault(
        lambda: dense(Counting(name="own")), "layer output", "`own`", Counting, "calls Python code"
    ),
    "state": Fault(
        lambda: dense(Seeing(name="own")), "layer state", "`own/seen`", Seeing, "replica 0's"
    ),
    "loss": Fault(lambda: dense(loss=contrastive), "loss", "`contrastive`", contrastive, "couples"),
    "gradients": Fault(
        lambda: dense(kind=ScaledGradients),
        "gradients",
        "`ScaledGradients.train_step`",
        ScaledGradients.train_step,
        "between the loss and the update",
    ),
    "update": Fault(
        lambda: dense(optimizer=OwnSteps(0.1)), "weights", "`OwnSteps`", OwnSteps, "nothing mends"
    ),
    "slot": Fault(
        lambda: dense(optimizer=OwnCount(0.1)), "optimizer state", "`OwnCount`", OwnCount, "keeps"
    ),
    "metric": Fault(lambda: dense(metrics=[Calls()]), "metrics", "`calls`", Calls, "count calls"),
    "rate": Fault(
        faster, "optimizer state", "`sgd/learning_rate`", None, "num_replicas_in_sync", step=0
    ),
}
