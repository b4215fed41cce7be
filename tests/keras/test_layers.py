"""What layers give may have other rows than what they were given."""

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers

UNEVEN = [8, 3, 5]
X, Y = harness.regression_data(sum(UNEVEN))


class Of(layers.Layer):
    """Gives what a function makes of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Reducing(keras.Model):
    """Differentiates a mean, or another reduction, of what some layers give."""

    def __init__(self, hidden, reduce):
        super().__init__()
        self.reduce = reduce
        self.inner = keras.Sequential(
            [keras.Input((5,)), layers.Dense(3, "tanh"), *hidden, layers.Dense(1)]
        )
        self.built = True

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.reduce(tf.square(self.inner(data[0]) - 1.0))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"done": tf.ones(())}


def model_of(make_layers, reduce=tf.reduce_mean):
    def build():
        model = Reducing(make_layers(), reduce)
        model.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
        return model

    return build


def fit(model):
    model.fit(harness.batches_of(UNEVEN, X, Y), verbose=0)


def positive(x):
    return tf.boolean_mask(x, x[:, 0] > 0)


GIVES = {
    "rows twice": lambda x: tf.concat([x, 2.0 * x], axis=0),
    "a loop over rows": lambda x: tf.map_fn(tf.sin, x),
    "rows merged and cut again": lambda x: tf.reshape(tf.reshape(x, [-1]) * 2.0, [-1, 3]),
    "some rows": positive,
    "rows at places": lambda x: tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]),
    "some rows, through a loop": lambda x: tf.map_fn(tf.sin, positive(x)),
    "a fixed number of rows": lambda x: tf.gather(x, [0, 0]),
}


@pytest.mark.parametrize("name", tiers.cases(GIVES, ["some rows, through a loop"]))
def test_rows_of_any_number_train_as_on_one_device(name, trains_as_one_device):
    trains_as_one_device(model_of(lambda: [Of(GIVES[name])]), fit)


def test_layers_of_keras_give_rows_in_batches_of_one_size(replicas, trains_as_one_device):
    """There a sum is right, too, though the graph does not show what a loop gives."""

    def hidden():
        return [layers.Reshape((3, 1)), layers.GRU(3), layers.GaussianNoise(0.1)]

    def use(model):
        dataset = tf.data.Dataset.from_tensor_slices((X, Y))
        model.fit(dataset.batch(2 * replicas, drop_remainder=True), verbose=0)

    trains_as_one_device(model_of(hidden, lambda rows: tf.reduce_sum(rows) / 20.0), use)


class Integrating(layers.Layer):
    """So many operations that nobody can follow them by recursion."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal")

    def call(self, x):
        for _ in range(60):
            x = x + 0.01 * tf.tanh(x @ self.kernel)
        return x


def test_a_layer_of_many_operations_trains_as_on_one_device(trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((5,)), Integrating(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    trains_as_one_device(build)
