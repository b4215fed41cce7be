"""A loss that is one number is the whole batch's, whatever it is made of."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

UNEVEN = [8, 3, 1, 5]
X, Y = harness.regression_data(sum(UNEVEN))
WEIGHTS = np.linspace(0.1, 4.0, len(X)).astype("float32")


def squares(y_true, y_pred):
    return tf.square(y_true - y_pred)


def a_sum(y_true, y_pred):
    return 0.1 * tf.reduce_sum(squares(y_true, y_pred))


def a_mean(y_true, y_pred):
    return tf.reduce_mean(squares(y_true, y_pred))


def of_every_kind(y_true, y_pred):
    """A sum, a root of a mean, and a mean that is masked by hand."""
    mask = tf.cast(y_true < 0.2, tf.float32)  # some of each batch
    masked = tf.reduce_sum(mask * squares(y_true, y_pred)) / tf.reduce_sum(mask)
    return a_sum(y_true, y_pred) + tf.sqrt(a_mean(y_true, y_pred)) + masked


class Penalty(keras.layers.Layer):
    """Gives a function of its inputs and of its kernel to `add_loss`."""

    def __init__(self, penalty):
        super().__init__()
        self.penalty = penalty

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        x = x * self.kernel
        self.add_loss(self.penalty(x, self.kernel))
        return x


def penalties(x, kernel):
    """A sum as of a divergence, a mean, a deviation, a penalty on weights, and a loss of Keras."""
    total = 0.05 * tf.reduce_sum(tf.square(x)) + tf.reduce_mean(tf.abs(x)) + tf.math.reduce_std(x)
    return total + 0.3 * tf.nn.l2_loss(kernel) + keras.losses.Huber()(tf.ones_like(x), x)


def build(loss="mse", penalty=None, **options):
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="tanh", activity_regularizer="l2")(inputs)
    hidden = hidden if penalty is None else Penalty(penalty)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.02), loss=loss, **{"jit_compile": False, **options})
    return model


def fit(*arrays):
    return harness.fit_datasets(
        lambda: harness.batches_of(UNEVEN, *arrays), epochs=1, then=["evaluate", "predict"]
    )


@pytest.mark.parametrize("how", tiers.first_of("as a graph", "run_eagerly", "jit_compile"))
def test_a_scalar_is_the_whole_batchs(how, trains_as_one_device):
    options = {} if how == "as a graph" else {how: True}
    trains_as_one_device(lambda: build(of_every_kind, penalties, **options), fit(X, Y))


@pytest.mark.exhaustive("test_a_scalar_is_the_whole_batchs")
@pytest.mark.parametrize("loss", [a_sum, a_mean])
def test_a_scalar_takes_the_mean_weight_of_the_whole_batch(loss, trains_as_one_device):
    trains_as_one_device(lambda: build(loss), fit(X, Y, WEIGHTS))


@pytest.mark.exhaustive("test_a_scalar_is_the_whole_batchs")
@pytest.mark.parametrize(
    "losses",
    [
        [a_sum, keras.losses.MeanSquaredError(reduction=None)],
        [keras.losses.MeanSquaredError(reduction=None), "mse"],
        [keras.losses.MeanSquaredError(reduction=None), a_mean],
    ],
    ids=["a sum", "a loss of Keras", "a mean"],
)
def test_a_scalar_beside_values_per_example_counts_for_each(losses, trains_as_one_device):
    def two_heads():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(1)(hidden) for _ in losses])
        model.compile(keras.optimizers.SGD(0.01), loss=losses, jit_compile=False)
        return model

    data = harness.batches_of(UNEVEN, X, Y, -Y).map(lambda x, y, z: (x, (y, z)))
    # Keras weighs such a loss otherwise in the logs where it knows the size of the batch.
    trains_as_one_device(
        two_heads, lambda model: model.fit(data, verbose=0).history, one_device_eagerly=False
    )
