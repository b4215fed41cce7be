"""BatchNormalization: synchronized is one device's; plain averages the replicas' statistics."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

EVEN, UNEVEN = [8, 8], [3, 8, 1, 5]


def data(examples, mean=0.0, features=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, features)) * np.linspace(0.5, 2.0, features) + mean
    return x.astype("float32"), rng.normal(size=(examples, 1)).astype("float32")


def synchronized(**options):
    """Synchronized where there is something to synchronize; plain on one device."""
    return layers.BatchNormalization(synchronized=tf.distribute.has_strategy(), **options)


def normalized_model(make_layer, optimizer=None, **hidden):
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, use_bias=False, **hidden),
            make_layer(momentum=0.8),
            layers.Activation("tanh"),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.5), loss="mse")
    return model


@pytest.mark.telling
@harness.in_sizes_and_replicas(UNEVEN, EVEN)
def test_synchronized_trains_as_plain_on_one_device(sizes, trains_as_one_device):
    arrays = data(sum(sizes))
    use = harness.fit_datasets(
        lambda: harness.batches_of(sizes, *arrays), then=["evaluate", "predict"]
    )
    trains_as_one_device(lambda: normalized_model(synchronized), use)


@pytest.mark.exhaustive("test_synchronized_trains_as_plain_on_one_device")
def test_synchronized_accumulates_and_clips_as_on_one_device(trains_as_one_device):
    def build():
        optimizer = keras.optimizers.Adam(0.02, global_clipnorm=0.3, gradient_accumulation_steps=3)
        return normalized_model(synchronized, optimizer)

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, *data(21)))


@pytest.mark.exhaustive("test_synchronized_trains_as_plain_on_one_device")
def test_synchronized_normalizes_images_as_on_one_device(trains_as_one_device):
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, size=(13, 4, 4, 3)).astype("float32")
    y = rng.normal(size=(13, 1)).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 3)),
                layers.Conv2D(4, 3, use_bias=False),
                synchronized(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, x, y, batch_size=5))


@pytest.mark.slow
def test_synchronized_counts_a_mask_as_on_one_device(trains_as_one_device):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, (16, 6)).astype("int32")
    ids[np.arange(6) >= np.where(np.arange(16) % 8 < 4, 2, 6)[:, None]] = 0
    targets = rng.normal(size=(16, 6, 1)).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(9, 3, mask_zero=True),
                synchronized(momentum=0.5),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))


def first_layer_model(**options):
    """Normalizes the input itself, so that NumPy knows what the layer sees."""
    model = keras.Sequential(
        [keras.Input((5,)), layers.BatchNormalization(**options), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(1e-3), loss="mse")
    return model


@pytest.mark.parametrize(
    ("mean", "examples"),
    [
        (1e4, 7),
        *(
            pytest.param(mean, n, marks=pytest.mark.exhaustive)
            for mean, n in [(1e4, 1), (0.0, 7), (0.0, 8)]
        ),
    ],
)
def test_synchronized_moments_are_those_of_the_global_batch(mean, examples, replicas):
    x, y = data(examples, mean)

    def build():  # without momentum the moving statistics are the last batch's moments
        return first_layer_model(synchronized=True, momentum=0.0)

    model = harness.build_in_scope(build, replicas)
    model.fit(harness.batches_of([examples], x, y), verbose=0)
    exact = x.astype(np.float64)
    normalization = model.layers[0]
    for variable, moment in [
        (normalization.moving_mean, exact.mean(0)),
        (normalization.moving_variance, exact.var(0)),
    ]:
        for copy in harness.components(variable):
            np.testing.assert_allclose(copy, moment, rtol=1e-5, atol=1e-5)


@harness.in_one_process
@pytest.mark.parametrize("sizes", tiers.first_of(UNEVEN, EVEN), ids=["uneven", "even"])
def test_plain_statistics_are_the_weighted_mean_of_the_replicas(sizes, replicas):
    x, y = data(sum(sizes), mean=3.0)
    model = harness.build_in_scope(lambda: first_layer_model(momentum=0.9), replicas)
    model.fit(harness.batches_of(sizes, x, y), verbose=0)

    strategy = model.distribute_strategy
    mean, variance = np.zeros(5), np.ones(5)
    for batch in strategy.experimental_distribute_dataset(harness.batches_of(sizes, x)):
        shares = [np.float64(s.numpy()) for s in strategy.experimental_local_results(batch)]
        shares = [s for s in shares if len(s)]
        counts = [len(s) for s in shares]
        mean = 0.9 * mean + 0.1 * np.average([s.mean(0) for s in shares], 0, counts)
        variance = 0.9 * variance + 0.1 * np.average([s.var(0) for s in shares], 0, counts)

    normalization = model.layers[0]
    for variable, expected in [
        (normalization.moving_mean, mean),
        (normalization.moving_variance, variance),
    ]:
        for copy in harness.components(variable):
            np.testing.assert_allclose(copy, expected, rtol=1e-5)
    harness.assert_replicas_identical(model)


@pytest.mark.exhaustive("test_plain_statistics_are_the_weighted_mean_of_the_replicas")
def test_plain_statistics_stay_identical_over_many_steps(replicas):
    def train(model):
        trace = harness.Trace()  # asserts after every step
        harness.fit_arrays(model, *data(21), callbacks=[trace])
        return len(trace.logs)

    outcome = harness.train(lambda: normalized_model(layers.BatchNormalization), train, replicas)
    assert outcome.seen == 3
    assert all(np.all(np.isfinite(w)) for w in outcome.weights)


class CountsCalls(layers.Layer):
    """Keeps statistics of its own: an integer and a running mean."""

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls"
        )
        self.running = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            self.running.assign(0.5 * self.running + 0.5 * keras.ops.mean(x))
        return x


def test_a_layers_own_statistics_are_one_devices(trains_as_one_device):
    def build():
        model = keras.Sequential([keras.Input((5,)), CountsCalls(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    def use(model):
        arrays = data(17, mean=2.0)
        return model.fit(harness.batches_of(UNEVEN, *arrays), verbose=0).history

    outcome, _ = trains_as_one_device(build, use)
    assert max(int(w) for w in outcome.weights if w.dtype == np.int32) >= 4


@pytest.mark.exhaustive("test_a_layers_own_statistics_are_one_devices")
def test_a_spectral_norm_is_one_devices(trains_as_one_device):
    def build():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.SpectralNormalization(layers.Dense(4)),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build)
