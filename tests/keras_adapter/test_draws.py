"""For whom random numbers are drawn, where shapes are fixed and a length may fit by chance."""

import re

import harness
import keras
import numpy as np
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


def model_with(make_layer, **options):
    def build():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, "tanh"), make_layer(), layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.02), loss="mse", **options)
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
    """As the error says it."""
    return keras.random.normal((1, *shape), **options)[0]


def factored(shape, seed):
    """A matrix of noise from a vector for each axis, as noisy networks for exploration have it."""
    rows, columns = (keras.random.normal((size,), seed=seed) for size in shape)
    signed = ops.sign(rows) * ops.sqrt(ops.abs(rows))
    return signed[:, None] * columns[None, :]


FOR_ALL = {
    "a multiple of the share": lambda: Noisy(4, keras.random.normal),
    "as long as the share, the first axis 1": lambda: Noisy(SHARE, in_front),
    "no multiple": lambda: Noisy(3, keras.random.normal),
}


@pytest.mark.parametrize(
    "name",
    tiers.cases(FOR_ALL, ["a multiple of the share"]),
)
def test_noise_on_weights_is_the_same_on_all_replicas(name, replicas, trains_as_one_device):
    trains_as_one_device(model_with(FOR_ALL[name]), fit_in(replicas))


FOR_EXAMPLES = {
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
}


@pytest.mark.parametrize(
    "name",
    tiers.cases(FOR_EXAMPLES, ["GaussianNoise"]),
)
def test_in_batches_of_one_size_noise_is_each_examples(name, replicas, trains_as_one_device):
    trains_as_one_device(model_with(FOR_EXAMPLES[name]), fit_in(replicas))


def through_functions(shape, seed):
    """Noise that comes out of one function and is given to another, in a loop."""
    noise = tf.function(lambda: keras.random.normal(shape, seed=seed), autograph=False)()
    twice = tf.function(lambda one: one + one, autograph=False)
    zeros = tf.zeros(shape)
    return tf.while_loop(
        lambda i, sum: i < 2, lambda i, sum: (i + 1, sum + twice(noise)), (0, zeros)
    )[1]


REFUSED = {
    "on a kernel as long as the share": (
        lambda: Noisy(SHARE, keras.random.normal),
        r"with a variable.*\(1, \*shape\)",
    ),
    "as a mask": (
        lambda: Noisy(
            SHARE, lambda shape, seed: keras.random.dropout(ops.ones(shape), 0.5, seed=seed)
        ),
        "with a variable",
    ),
    "in factors": (lambda: Noisy(SHARE, factored), "with a variable"),
    "in functions": (lambda: Noisy(SHARE, through_functions), "with a variable"),
    "for a kernel": (
        lambda: WithNoise(
            lambda x, seed: x[:, :SHARE] @ keras.random.normal((SHARE, 4), seed=seed)
        ),
        "`MatMul`",
    ),
    "for several rows of each example": (
        lambda: WithNoise(
            lambda x, seed: ops.reshape(
                ops.reshape(x, (-1, 2)) + keras.random.normal((2 * SHARE, 2), seed=seed), (-1, 4)
            )
        ),
        r"with values of examples.*keras\.ops\.shape",
    ),
}


# In functions that run eagerly a draw cannot be followed, which a warning says.
EAGERLY = [name for name in REFUSED if name != "in functions"]


@pytest.mark.parametrize("name", tiers.cases(EAGERLY, ["as a mask", "for a kernel"]))
def test_in_eager_steps_a_draw_that_is_used_for_others_is_refused(name, replicas):
    make_layer, message = REFUSED[name]
    model = harness.build_in_scope(model_with(make_layer, run_eagerly=True), replicas)
    with pytest.raises(ValueError, match=message):
        fit_in(replicas)(model)


# A draw for rows that one device's batch has not, such as 2 * SHARE, fails there.
FOR_WEIGHTS = [name for name in REFUSED if name != "for several rows of each example"]


@pytest.mark.parametrize("name", tiers.cases(FOR_WEIGHTS, ["in functions", "for a kernel"]))
def test_in_graphs_a_draw_for_weights_is_one_devices(name, replicas, trains_as_one_device):
    trains_as_one_device(model_with(REFUSED[name][0]), fit_in(replicas))


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


def test_who_needs_the_number_of_a_share_s_only_example_is_told_why_it_has_none(replicas):
    build = model_with(lambda: WithNoise(lambda x, seed: tf.stack(tf.unstack(x))))
    model = harness.build_in_scope(build, replicas)
    with pytest.raises(ValueError, match=r"(?s)argument `num`.*Use `tf\.shape\(x\)\[0\]`"):
        fit_in(replicas, share=1)(model)


def test_what_eager_steps_do_not_show_of_a_draw_is_told(replicas, caplog):
    def noise(x, seed):
        return tf.function(lambda: keras.random.normal((1, 4), seed=seed))()

    build = model_with(lambda: WithNoise(noise), run_eagerly=True)
    fit_in(replicas, share=1)(harness.build_in_scope(build, replicas))
    told = [record.getMessage() for record in caplog.records if record.name == "tfdp"]
    assert [bool(re.search("an example's own|`tf.function`", text)) for text in told] == [True] * 2


def test_rows_that_are_left_have_numbers_of_their_own(replicas):
    """Where no replica knows how many rows another has left, none has those of another."""
    seen = []

    def noise(x, seed):
        left = tf.boolean_mask(x, x[:, 0] < np.inf)[1:]
        drawn = keras.random.normal((tf.shape(left)[0], 40), seed=seed)
        tf.numpy_function(lambda drawn: seen.append(drawn.tobytes()), [drawn], [])
        return 0.0 * ops.sum(drawn)

    model = harness.build_in_scope(model_with(lambda: WithNoise(noise)), replicas)
    x, y = harness.regression_data(2 * replicas + 1, features=4)
    model.fit(harness.batches_of([2 * replicas + 1], x, y), verbose=0)
    assert len(set(seen)) == len(seen) > 1
