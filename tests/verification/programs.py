"""Programs that train on many replicas as on one device, however much rounding they amplify."""

import keras
import numpy as np
import tensorflow as tf
from verification.faults import FEATURES, dense


def adam_before_normalization():
    """The gradient of the bias is zero but for rounding, which Adam makes as large as its rate."""
    return dense(
        keras.layers.BatchNormalization(synchronized=True), optimizer=keras.optimizers.Adam(1e-2)
    )


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
    """The first step overflows on all replicas; at the next the scale has come down."""
    keras.config.set_dtype_policy("mixed_float16")
    sgd = keras.optimizers.SGD(0.1)
    return dense(optimizer=keras.optimizers.LossScaleOptimizer(sgd, initial_scale=2.0**17))


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


def words():
    """Rows of an embedding: sparse gradients."""
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            keras.layers.Embedding(9, 2),
            keras.layers.GRU(2, dropout=0.2),
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
