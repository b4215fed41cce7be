"""Random numbers are one device's where shapes are fixed and a length may fit by chance."""

import functools

import harness
import keras
import pytest
import tensorflow as tf
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
    return 0.1 * ops.sum(keras.random.normal((tf.shape(left)[0], 4), seed=seed))


# Of which none is taken for a batch's or a share's, though it is as long.
OF_WEIGHTS = [
    lambda: Noisy(4, keras.random.normal),
    lambda: Noisy(3, keras.random.normal),
    *(
        functools.partial(Noisy, SHARE, draw)
        for draw in (in_front, keras.random.normal, as_mask, factored, through_functions)
    ),
]

OF_EXAMPLES = [
    lambda: WithNoise(of_rows_that_are_left),
    lambda: WithNoise(lambda x, seed: x[:, :SHARE] @ keras.random.normal((SHARE, 4), seed=seed)),
    lambda: WithNoise(lambda x, seed: keras.random.uniform((ops.shape(x)[0], 1), seed=seed)),
    lambda: WithNoise(
        lambda x, seed: ops.reshape(
            keras.random.normal((ops.shape(x)[0], 2, 2), seed=seed), (-1, 4)
        )
    ),
]

OF_KERAS = [
    lambda: layers.Dropout(0.5),
    lambda: layers.GaussianNoise(1.0),
    lambda: layers.GaussianDropout(0.5),
    lambda: layers.AlphaDropout(0.5),
    lambda: layers.Reshape((2, 2)),
    lambda: layers.GRU(4, dropout=0.3, recurrent_dropout=0.3, reset_after=False),
]

OF_ONE_ROW = [
    lambda: layers.GaussianNoise(0.5),
    lambda: layers.Dropout(0.5, noise_shape=(1, 4)),
    lambda: WithNoise(lambda x, seed: keras.random.normal((1, 4), seed=seed)),
    lambda: Noisy(1, keras.random.normal),
    lambda: Noisy(4, in_front),
]


@pytest.mark.parametrize(
    ("makers", "share"),
    [
        (OF_WEIGHTS, SHARE),
        (OF_EXAMPLES, SHARE),
        pytest.param(OF_KERAS, SHARE, marks=pytest.mark.exhaustive),
        (OF_ONE_ROW, 1),
    ],
    ids=["of weights", "of examples", "of Keras' layers", "of one row"],
)
def test_draws_are_one_devices(makers, share, replicas, trains_as_one_device):
    def noise():
        return keras.Sequential([make() for make in makers])

    trains_as_one_device(model_with(noise), fit_in(replicas, share))
