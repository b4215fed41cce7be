"""Random layers: for each example what one device draws, the same numbers in every run.

In a replica function of the user's own, whose share of a batch nobody knows, each replica draws
other numbers.
"""

import contextlib
import itertools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

RANDOM_LAYERS = {
    "Dropout": lambda: layers.Dropout(0.5),
    "Dropout with a seed": lambda: layers.Dropout(0.5, seed=3),
    "GaussianNoise": lambda: layers.GaussianNoise(1.0),
    "SpatialDropout1D": lambda: layers.SpatialDropout1D(0.5),
}


def draws(make_layer, replicas, times=2):
    """What a random layer makes of ones, on each replica, several times."""
    harness.start_over()
    strategy = harness.strategy(replicas)
    with strategy.scope():
        layer = make_layer()

    @tf.function
    def step():
        return strategy.run(lambda: layer(tf.ones((3, 5, 40)), training=True))

    return [
        [value.numpy() for value in strategy.experimental_local_results(step())]
        for _ in range(times)
    ]


@harness.in_one_process
@pytest.mark.parametrize(
    "name",
    tiers.cases(RANDOM_LAYERS, ["Dropout with a seed"]),
)
def test_replicas_draw_different_numbers_and_a_run_repeats_them(name, replicas):
    drawn = draws(RANDOM_LAYERS[name], replicas)
    everything = [value for step in drawn for value in step]
    assert len(everything) == 2 * replicas
    for a, b in itertools.combinations(everything, 2):
        assert np.mean(a != b) > 0.2, "Two replicas, or two steps, drew the same numbers."
    again = [value for step in draws(RANDOM_LAYERS[name], replicas) for value in step]
    for a, b in zip(everything, again, strict=True):
        np.testing.assert_array_equal(a, b)


class NoisyWeights(layers.Layer):
    """Noise of the weights' shape, which has nothing to do with the examples."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 6), initializer="glorot_uniform")
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        noise = keras.random.normal(self.kernel.shape, stddev=0.1, seed=self.seed_generator)
        return x @ (self.kernel + noise) if training else x @ self.kernel


class Windows(layers.Layer):
    """Drops of (examples x windows, features)."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.5)

    def call(self, x, training=False):
        steps, features = x.shape[1:]
        flat = self.dropout(keras.ops.reshape(x, (-1, features)), training=training)
        return keras.ops.reshape(flat, (-1, steps, features))


class Transposed(layers.Dropout):
    """Drops of (features, ..., examples)."""

    def call(self, inputs, training=False):
        turned = super().call(keras.ops.transpose(inputs), training=training)
        return keras.ops.transpose(turned)


class Chosen(layers.Layer):
    """Adds integers, with no seed of its own, and numbers of a seed that stays."""

    def call(self, x, training=False):
        if not training:
            return x
        rows = keras.ops.shape(x)[0]
        chosen = keras.ops.cast(keras.random.randint((rows, 1, 1), -2, 3), "float32")
        shift = keras.random.uniform(keras.ops.shape(x), -0.5, 0.5, seed=9)
        return x + chosen + keras.random.uniform(()) * shift


def attention():
    x = keras.Input((3, 4))
    y = layers.MultiHeadAttention(2, 2, dropout=0.4)(x, x)
    return keras.Model(x, y)


# Of inputs of (examples, steps, features).
OF_SEQUENCES = {
    **RANDOM_LAYERS,
    "Dropout alike over time": lambda: layers.Dropout(0.5, noise_shape=(None, 1, 4)),
    "Dropout alike for all": lambda: layers.Dropout(0.5, noise_shape=(1, 3, 4)),
    "Dropout of noise with fewer axes": lambda: layers.Dropout(0.5, noise_shape=(3, 4)),
    "GaussianDropout": lambda: layers.GaussianDropout(0.5),
    "AlphaDropout": lambda: layers.AlphaDropout(0.5),
    "attention": attention,
    "GRU": lambda: layers.GRU(
        4, dropout=0.3, recurrent_dropout=0.3, return_sequences=True, reset_after=False
    ),
    "noise on weights": NoisyWeights,
    "windows": Windows,
    "transposed": lambda: Transposed(0.5),
    "integers, without a seed": Chosen,
}

FAST = {"Dropout"}


def model_with(make_layer, **compile_options):
    """Something random between weights, so that gradients pass through it."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(12, activation="tanh"),
                layers.Reshape((3, 4)),
                make_layer(),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(optimizer, loss="mse", metrics=["mae"], **compile_options)
        return model

    return build


def fit_uneven(model):
    """Batches that no number of replicas shares evenly; in the last, shares are empty."""
    dataset = harness.batches_of([7, 9, 8, 1], *harness.regression_data(25))
    return model.fit(dataset, epochs=2, verbose=0).history


@pytest.mark.telling
@pytest.mark.parametrize(
    "name",
    tiers.cases(OF_SEQUENCES, FAST),
)
def test_a_random_layer_trains_as_on_one_device(name, trains_as_one_device):
    trains_as_one_device(model_with(OF_SEQUENCES[name]), fit_uneven)


@pytest.mark.exhaustive("test_a_random_layer_trains_as_on_one_device")
@pytest.mark.parametrize(
    "options",
    [{"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}],
    ids=lambda options: next(iter(options)),
)
def test_dropout_is_one_devices_however_the_step_runs(options, trains_as_one_device):
    trains_as_one_device(model_with(OF_SEQUENCES["Dropout"], **options))


@pytest.mark.exhaustive("test_a_random_layer_trains_as_on_one_device")
def test_the_layers_that_augment_draw_one_devices_numbers(trains_as_one_device):
    images = np.random.default_rng(0).uniform(size=(21, 6, 6, 1)).astype("float32")
    targets = images[:, 0, 0]

    def build():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.RandomFlip(),
                layers.RandomTranslation(0.2, 0.2),
                layers.RandomRotation(0.2),
                layers.RandomContrast(0.5),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, images, targets))


class Kept(layers.Layer):
    """Drops in a function of its own, which TensorFlow keeps from one trace of the step to another.

    It is traced for any number of examples, so that one of an eager step serves them all.
    """

    def build(self, shape):
        self.seed_generator = keras.random.SeedGenerator(3)
        signature = [tf.TensorSpec((None, *shape[1:]))]
        self.drop = tf.function(self.drop, signature, autograph=False)

    def drop(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seed_generator)

    def call(self, x, training=False):
        return self.drop(x) if training else x

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.parametrize("run_eagerly", tiers.first_of(False, True), ids=["graph", "eager"])
def test_a_function_inside_a_layer_draws_in_steps_that_are_traced_later(
    run_eagerly, trains_as_one_device
):
    def use(model):
        for sizes in ([7, 9, 1], [6], [12], [5, 8]):
            model.compile("sgd", loss="mse", run_eagerly=run_eagerly)
            data = harness.regression_data(sum(sizes))
            dataset = tf.data.Dataset.from_tensor_slices(data).batch(sizes[0], drop_remainder=True)
            model.fit(harness.batches_of(sizes, *data) if sizes[1:] else dataset, verbose=0)

    trains_as_one_device(model_with(Kept), use)


def test_outside_of_steps_dropout_takes_what_keras_takes():
    dropped = keras.random.dropout(tf.ones((3, 4)), 0.5, noise_shape=(4,), seed=3).numpy()
    assert (dropped == dropped[0]).all()


class Gan(keras.Model):
    """A step of the user's own that draws for itself, twice, without a seed."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(5)])
        self.critic = keras.Sequential([keras.Input((5,)), layers.Dense(1)])

    def call(self, x):
        return self.critic(x)

    def train_step(self, data):
        x, y = data
        noise = keras.random.normal((tf.shape(x)[0], 3))
        with tf.GradientTape() as tape:
            made = self.critic(self.generator(noise))
            smooth = y + 0.1 * keras.random.uniform(tf.shape(y))
            loss = tf.reduce_mean((self.critic(x) - smooth) ** 2) + tf.reduce_mean(made**2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def gan():
    model = Gan()
    model.build((None, 5))
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    return model


def test_a_train_step_that_draws_noise_draws_one_devices(trains_as_one_device):
    trains_as_one_device(gan)


def test_the_generator_of_unseeded_draws_goes_on_from_where_it_is(trains_as_one_device):
    """It may have been made outside of the scope, and is used outside again afterwards."""

    def use(model):
        seen = [keras.random.normal((3,)).numpy()]
        for _ in range(2):
            harness.fit_arrays(model)
            seen.append(keras.random.normal((3,)).numpy())
        keras.utils.set_random_seed(5)
        harness.fit_arrays(model)
        return [*seen, keras.random.normal((3,)).numpy()]

    # A seed that is set between steps of one graph is not in those that were traced.
    trains_as_one_device(gan, use, one_device_eagerly=False)


@harness.in_one_process
def test_the_generator_of_unseeded_draws_goes_on_under_another_strategy(replicas):
    def train_and_draw(replicas, scope):
        harness.fit_arrays(harness.build_in_scope(gan, replicas))
        with scope:
            return keras.random.normal((3,)).numpy()

    alone = train_and_draw(None, contextlib.nullcontext())
    other = tf.distribute.OneDeviceStrategy("CPU:0")
    np.testing.assert_array_equal(train_and_draw(replicas, other.scope()), alone)


@pytest.mark.exhaustive("test_a_random_layer_trains_as_on_one_device")
def test_dropout_in_mixed_precision_is_one_devices(trains_as_one_device):
    def build():
        keras.config.set_dtype_policy("mixed_float16")
        return model_with(OF_SEQUENCES["Dropout"])()

    trains_as_one_device(build, tolerance=0.02)


def dropout_model():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(32, activation="tanh"),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), loss="mse")
    return model


@pytest.mark.exhaustive("test_a_random_layer_trains_as_on_one_device")
def test_training_with_dropout_is_reproducible_from_the_seed(replicas):
    def train(seed):
        def build():
            keras.utils.set_random_seed(seed)
            return dropout_model()

        return harness.train(build, harness.fit_arrays, replicas).weights

    first, again, other = train(11), train(11), train(12)
    for a, b in zip(first, again, strict=True):
        assert a.tobytes() == b.tobytes()
    assert np.any(first[0] != other[0])


def test_a_seed_generators_state_is_the_same_on_every_replica(replicas):
    model = harness.build_in_scope(dropout_model, replicas)
    state = model.layers[1].seed_generator.state
    before = harness.components(state)[0]
    harness.fit_arrays(model)
    copies = harness.components(state)
    assert np.any(copies[0] != before)
    assert all(np.array_equal(copies[0], copy) for copy in copies)


def test_initial_weights_are_one_devices(replicas):
    alone = harness.weights(harness.build_in_scope(dropout_model))
    model = harness.build_in_scope(dropout_model, replicas)
    harness.assert_replicas_identical(model)
    for a, b in zip(harness.weights(model), alone, strict=True):
        np.testing.assert_array_equal(a, b)


X, Y = harness.regression_data(13)


def test_predict_draws_what_one_device_draws(trains_as_one_device):
    def use(model):
        predicted = model.predict(X, batch_size=6, verbose=0)
        return predicted, harness.fit_arrays(model, X, Y, batch_size=6)

    def build():
        inputs = keras.Input(X.shape[1:])
        outputs = keras.layers.Dense(1)(keras.layers.Dropout(0.5, seed=1)(inputs, training=True))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    trains_as_one_device(build, use)
