"""Programs that train on many replicas as on one device, however much rounding they amplify."""

import keras
import numpy as np
import tensorflow as tf
from verification.faults import FEATURES, batches, dense


def adam_before_normalization(*layers):
    """The gradient of the bias is zero but for rounding, which Adam makes as large as its rate."""
    normalized = keras.layers.Dense(3), keras.layers.BatchNormalization()
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


class Turned(keras.layers.Layer):
    """Turns inputs in the complex plane."""

    def build(self, shape):
        def one(shape, dtype):
            return tf.complex(tf.ones(shape), 0.5 * tf.ones(shape))

        self.turn = self.add_weight([shape[-1]], one, "complex64", name="turn")

    def call(self, x):
        turned = tf.cast(x, tf.complex64) * self.turn
        return tf.math.real(turned) ** 2 + tf.math.imag(turned)


def turned():
    return dense(Turned())


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


# What is no mean over examples.
HARD = {
    "the root of a mean": lambda: dense(loss=root_of_mean),
    "a sum in a scalar": lambda: dense(loss=total),
    "a metric that assigns": lambda: dense(metrics=[Last()]),
    "a codebook": lambda: dense(Codes()),
    "a sum in add_loss": lambda: dense(Penalty()),
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


def replica():
    """The number of this replica; a step has but one, as on one device."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def one_more(value):
    """The value of the first replica; another's would be a multiple of it."""
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
    """Keeps what the first replica has seen, which is the whole batch."""

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
    """Touches gradients by the replica's number, which is no tensor."""

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


class Batches(keras.metrics.Metric):
    """Counts batches."""

    def __init__(self, name="batches"):
        super().__init__(name=name)
        self.batches = self.add_weight(name="batches", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.batches.assign_add(1.0)

    def result(self):
        return self.batches


# What replicas that trace a step each for itself would do otherwise than one device.
OF_ONE_STEP = {
    "tf.random": lambda: dense(Drawing()),
    "a mean over the batch": lambda: dense(Centering()),
    "Python": lambda: dense(Counting()),
    "state": lambda: dense(Seeing()),
    "loss": lambda: dense(loss=contrastive),
    "gradients": lambda: dense(kind=ScaledGradients),
    "update": lambda: dense(optimizer=OwnSteps(0.1)),
    "slot": lambda: dense(optimizer=OwnCount(0.1)),
    "metric": lambda: dense(metrics=[Batches()]),
}
