"""Random numbers are one device's where shapes are fixed and a length may fit by chance."""

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops

SHARE = 2  # examples on each replica


class Noisy(layers.Layer):
    """A dense layer with noise on its kernel, drawn as `draw` says it."""

    def __init__(self, features, draw):
        super().__init__()
        self.features, self.draw = features, draw

    def build(self, shape):
        self.kernel = self.add_weight(shape=(self.features, 6), name="kernel")
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        x = x[:, : self.features]
        if not training:
            return x @ self.kernel
        return x @ (self.kernel + 0.1 * self.draw(self.kernel.shape, seed=self.seed_generator))


class WithNoise(layers.Layer):
    """Adds to the inputs what `make` makes of them and a seed."""

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        return x + self.make(x, self.seed_generator) if training else x


def model_with(make_layer):
    def build():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, "tanh"), make_layer(), layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.02), loss="mse")
        return model

    return build


def fit_in(replicas, share=SHARE):
    """A function that fits batches of one size, which shapes in the step know."""
    x, y = harness.regression_data(6 * share * replicas, features=4)

    def fit(model):
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        model.fit(dataset.batch(share * replicas, drop_remainder=True), verbose=0)

    return fit


def in_front(shape, **options):
    return keras.random.normal((1, *shape), **options)[0]


def factored(shape, seed):
    """A matrix of noise from a vector for each axis, as noisy networks for exploration have it."""
    rows, columns = (keras.random.normal((size,), seed=seed) for size in shape)
    signed = ops.sign(rows) * ops.sqrt(ops.abs(rows))
    return signed[:, None] * columns[None, :]


def through_functions(shape, seed):
    """Noise that comes out of one function and is given to another, in a loop."""
    noise = tf.function(lambda: keras.random.normal(shape, seed=seed), autograph=False)()
    twice = tf.function(lambda one: one + one, autograph=False)
    zeros = tf.zeros(shape)
    return tf.while_loop(
        lambda i, sum: i < 2, lambda i, sum: (i + 1, sum + twice(noise)), (0, zeros)
    )[1]


def as_mask(shape, seed):
    return keras.random.dropout(ops.ones(shape), 0.5, seed=seed)


def of_rows_that_are_left(x, seed):
    left = tf.boolean_mask(x, x[:, 0] > 0.0)
    return ops.sum(keras.random.normal((tf.shape(left)[0], 4), seed=seed))


DRAWS = {
    "a multiple of the share": lambda: Noisy(4, keras.random.normal),
    "as long as the share, the first axis 1": lambda: Noisy(SHARE, in_front),
    "no multiple": lambda: Noisy(3, keras.random.normal),
    "on a kernel as long as the share": lambda: Noisy(SHARE, keras.random.normal),
    "as a mask": lambda: Noisy(SHARE, as_mask),
    "in factors": lambda: Noisy(SHARE, factored),
    "in functions": lambda: Noisy(SHARE, through_functions),
    "for a kernel": lambda: WithNoise(
        lambda x, seed: x[:, :SHARE] @ keras.random.normal((SHARE, 4), seed=seed)
    ),
    "Dropout": lambda: layers.Dropout(0.5),
    "GaussianNoise": lambda: layers.GaussianNoise(1.0),
    "GaussianDropout": lambda: layers.GaussianDropout(0.5),
    "AlphaDropout": lambda: layers.AlphaDropout(0.5),
    "GRU": lambda: keras.Sequential(
        [
            layers.Reshape((2, 2)),
            layers.GRU(4, dropout=0.3, recurrent_dropout=0.3, reset_after=False),
        ]
    ),
    "one for each": lambda: WithNoise(
        lambda x, seed: keras.random.uniform((ops.shape(x)[0], 1), seed=seed)
    ),
    "rows that are merged": lambda: WithNoise(
        lambda x, seed: ops.reshape(
            keras.random.normal((ops.shape(x)[0], 2, 2), seed=seed), (-1, 4)
        )
    ),
    "rows that are left": lambda: WithNoise(of_rows_that_are_left),
}


@pytest.mark.parametrize("name", tiers.cases(DRAWS, ["GaussianNoise", "rows that are left"]))
def test_draws_are_one_devices(name, replicas, trains_as_one_device):
    trains_as_one_device(model_with(DRAWS[name]), fit_in(replicas))


def drawn_for_one():
    """Layers whose draws are for each example, for all of them, and for weights."""
    return keras.Sequential(
        [
            layers.GaussianNoise(0.5),
            layers.Dropout(0.5, noise_shape=(1, 4)),
            WithNoise(lambda x, seed: keras.random.normal((1, 4), seed=seed)),
            Noisy(1, keras.random.normal),
            Noisy(4, in_front),
        ]
    )


def test_a_size_of_one_is_not_the_number_of_a_share_s_examples(replicas, trains_as_one_device):
    trains_as_one_device(model_with(drawn_for_one), fit_in(replicas, share=1))
