"""Programs that train on many replicas as on one device, however much rounding they amplify."""

import keras
import numpy as np
import tensorflow as tf
from verification.faults import FEATURES, batches, dense


def adam_before_normalization(*layers):
    """The gradient of the bias is zero but for rounding, which Adam makes as large as its rate."""
    normalized = keras.layers.Dense(3), keras.layers.BatchNormalization(synchronized=True)
    return dense(*layers, *normalized, optimizer=keras.optimizers.Adam(1e-2))


def accumulating():
    """A window that is open at the end."""
    optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2, global_clipnorm=0.1)
    return dense(optimizer=optimizer, metrics=["mae"])


def dropping():
    return dense(keras.layers.Dropout(0.5))


def half_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return dense()


def scaled():
    """Skips a step in which an example overflows."""
    keras.config.set_dtype_policy("mixed_float16")
    sgd = keras.optimizers.SGD(0.1)
    return dense(optimizer=keras.optimizers.LossScaleOptimizer(sgd, initial_scale=2.0**10))


def with_an_overflow():
    """Batches for `scaled`."""
    first, *others = batches()
    first[1][0] = 1e6
    return [first, *others]


def compiled():
    return dense(jit_compile=True)


def eager():
    return dense(keras.layers.Dropout(0.5), run_eagerly=True)


class Lazy(keras.Model):
    """Is built by its first step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x):
        return self.last(keras.ops.tanh(self.first(x)))


def lazy():
    model = Lazy()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


class Adversaries(keras.Model):
    """Two networks with an optimizer each, in a step of their own."""

    def __init__(self):
        super().__init__()
        self.judge = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(1)])

    def compile(self):
        super().compile()
        self.judges = keras.optimizers.Adam(1e-2)
        self.makes = keras.optimizers.SGD(0.1, momentum=0.9)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            verdicts = tf.concat([self.judge(y), self.judge(self.maker(x))], 0)
            truth = tf.concat([tf.ones_like(y), tf.zeros_like(y)], 0)
            judged = self.loss_of(truth, verdicts)
        variables = self.judge.trainable_variables
        self.judges.apply(tape.gradient(judged, variables), variables)
        with tf.GradientTape() as tape:
            made = self.loss_of(tf.ones_like(y), self.judge(self.maker(x)))
        variables = self.maker.trainable_variables
        self.makes.apply(tape.gradient(made, variables), variables)
        return {"judge_loss": judged, "maker_loss": made}


def adversaries():
    model = Adversaries()
    model.compile()
    return model


def root_of_mean(y_true, y_pred):
    """No mean over examples, in a scalar."""
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))


def total(y_true, y_pred):
    """A sum over examples, in a scalar."""
    return keras.ops.sum(keras.ops.square(y_true - y_pred))


class Last(keras.metrics.Metric):
    """Assigns its state."""

    def __init__(self):
        super().__init__(name="last")
        self.error = self.add_weight(name="error", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.error.assign(keras.ops.mean(keras.ops.abs(y_true - y_pred)))

    def result(self):
        return self.error


class Codes(keras.layers.Layer):
    """A vector quantizer whose codes are moving averages of what is assigned to them."""

    def build(self, shape):
        self.codes = self.add_weight(
            name="codes", shape=(2, shape[-1]), initializer="random_normal", trainable=False
        )

    def call(self, x):
        distances = keras.ops.sum(keras.ops.square(x[:, None] - self.codes), -1)
        assigned = keras.ops.one_hot(keras.ops.argmin(distances, -1), 2)
        counts = keras.ops.sum(assigned, 0)[:, None]
        means = keras.ops.matmul(keras.ops.transpose(assigned), x) / keras.ops.maximum(counts, 1.0)
        self.codes.assign(0.5 * self.codes + 0.5 * means)
        return x + keras.ops.stop_gradient(keras.ops.matmul(assigned, self.codes) - x)


class Penalty(keras.layers.Layer):
    """Adds a sum over examples to the loss."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(x)))
        return x


class Drawing(keras.layers.Layer):
    """Noise from TensorFlow's generators, around the batch's mean."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0) + tf.random.normal(tf.shape(x), seed=3)


def contrastive(y_true, y_pred):
    """Each example against the others of its batch."""
    return -tf.nn.log_softmax(-tf.abs(y_true - tf.transpose(y_pred)))[:, 0]


# What replicas that trace a step of their own would not train as one device does.
HARD = {
    "the root of a mean": lambda: dense(loss=root_of_mean),
    "a sum in a scalar": lambda: dense(loss=total),
    "a metric that assigns": lambda: dense(metrics=[Last()]),
    "a codebook": lambda: dense(Codes()),
    "a sum in add_loss": lambda: dense(Penalty()),
    "noise around a mean": lambda: dense(Drawing()),
    "in-batch negatives": lambda: dense(loss=contrastive),
}


def words():
    """Rows of an embedding: sparse gradients."""
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            keras.layers.Embedding(9, 2),
            keras.layers.Dropout(0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", weighted_metrics=["mse"])
    return model


def texts():
    """Batches for `words`, with weights, one of them smaller than the replicas."""
    rng = np.random.default_rng(0)
    return [
        (rng.integers(0, 9, (size, 3)), rng.normal(size=(size, 1)), rng.random(size))
        for size in (5, 7, 2)
    ]
