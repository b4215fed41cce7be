"""BatchNormalization has the whole batch's statistics, or those of a replica's own examples."""

import functools
import inspect

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

EVEN, UNEVEN = [8, 8], [3, 8, 1, 5]
IMAGES = np.random.default_rng(0).normal(size=(6, 6, 6, 3)).astype("float32"), np.ones((6, 1))
RENORMALIZES = "renorm" in inspect.signature(layers.BatchNormalization).parameters


def data(examples, mean=0.0, features=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, features)) * np.linspace(0.5, 2.0, features) + mean
    return x.astype("float32"), rng.normal(size=(examples, 1)).astype("float32")


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
def test_it_trains_as_on_one_device(sizes, trains_as_one_device):
    arrays = data(sum(sizes))
    use = harness.fit_datasets(
        lambda: harness.batches_of(sizes, *arrays), then=["evaluate", "predict"]
    )
    trains_as_one_device(lambda: normalized_model(layers.BatchNormalization), use)


@pytest.mark.exhaustive("test_it_trains_as_on_one_device")
@pytest.mark.parametrize("option", ["synchronized", "renorm"])
def test_with_other_options_it_trains_as_on_one_device(option, trains_as_one_device):
    if option == "renorm" and not RENORMALIZES:
        pytest.skip("Keras has it in later versions")
    kind = functools.partial(layers.BatchNormalization, **{option: True})
    trains_as_one_device(lambda: normalized_model(kind), lambda model: fit(model, UNEVEN))


@pytest.mark.exhaustive("test_it_trains_as_on_one_device")
def test_a_layer_that_is_called_twice_or_frozen_trains_as_on_one_device(trains_as_one_device):
    def build():
        inputs = keras.Input((5,))
        shared, frozen = layers.BatchNormalization(momentum=0.5), layers.BatchNormalization()
        frozen.trainable = False
        outputs = layers.Dense(1)(frozen(shared(layers.Dense(5)(shared(inputs)))))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: fit(model, UNEVEN))


@pytest.mark.exhaustive("test_it_trains_as_on_one_device")
def test_in_half_precision_it_trains_as_on_one_device(trains_as_one_device):
    def build():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return normalized_model(layers.BatchNormalization)

    trains_as_one_device(build, lambda model: fit(model, UNEVEN), tolerance=1e-2)


@pytest.mark.exhaustive("test_it_trains_as_on_one_device")
def test_it_accumulates_and_clips_as_on_one_device(trains_as_one_device):
    def build():
        optimizer = keras.optimizers.Adam(0.02, global_clipnorm=0.3, gradient_accumulation_steps=3)
        return normalized_model(layers.BatchNormalization, optimizer)

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, *data(21)))


@pytest.mark.exhaustive("test_it_trains_as_on_one_device")
@pytest.mark.parametrize("axis", [-1, 1])
def test_it_normalizes_images_as_on_one_device(axis, trains_as_one_device):
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, size=(13, 4, 4, 3)).astype("float32")
    y = rng.normal(size=(13, 1)).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 3)),
                layers.Conv2D(4, 3, use_bias=False),
                layers.BatchNormalization(axis=axis),
                layers.GlobalAveragePooling2D(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, x, y, batch_size=5))


@pytest.mark.slow
def test_it_counts_a_mask_as_on_one_device(trains_as_one_device):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 9, (16, 6)).astype("int32")
    ids[np.arange(6) >= np.where(np.arange(16) % 8 < 4, 2, 6)[:, None]] = 0
    targets = rng.normal(size=(16, 6, 1)).astype("float32")

    def build():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(9, 3, mask_zero=True),
                layers.BatchNormalization(momentum=0.5),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    trains_as_one_device(build, lambda model: harness.fit_arrays(model, ids, targets))


def fit(model, sizes):
    return model.fit(harness.batches_of(sizes, *data(sum(sizes))), verbose=0).history


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
def test_its_moments_are_those_of_the_global_batch(mean, examples, replicas):
    x, y = data(examples, mean)

    def build():  # without momentum the moving statistics are the last batch's moments
        return first_layer_model(momentum=0.0)

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


def images_model(count, **options):
    model = keras.Sequential([keras.Input((6, 6, 3))])
    for _ in range(count):
        model.add(layers.Conv2D(4, 3, padding="same"))
        model.add(layers.BatchNormalization(**options))
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def test_each_layer_has_one_collective_in_each_pass():
    strategy, count = harness.strategy(2), 3
    with strategy.scope():
        model = images_model(count)
    model.fit(*IMAGES, verbose=0)
    explanation = strategy.explain(model)
    # Two numbers of each of 4 channels: statistics of 8 bytes, their gradients of 4.
    found = [each.normalization_bytes for each in explanation.collectives]
    assert found == [64] * count + [32] * count + [0]
    assert explanation.chain == 2 * count + 1
    assert f"{2 * count} of them bring plain BatchNorm" in " ".join(explanation.text().split())


@harness.in_one_process
@pytest.mark.parametrize("in_fit", [True, False], ids=["fit", "partitioned"])
def test_of_a_replica_s_own_it_has_one_devices_of_each_share(in_fit):
    strategy = harness.strategy(3, batch_normalization="per_replica")
    with strategy.scope():
        model = normalized_model(layers.BatchNormalization)
    one = keras.models.clone_model(model)
    one.set_weights(model.get_weights())
    x, y = data(7, mean=3.0)
    if in_fit:
        model.fit(x, y, batch_size=7, shuffle=False, verbose=0)
    else:
        step = strategy.partitioned(model.train_step)
        step((tf.constant(x), tf.constant(y)))
    with tf.GradientTape() as tape:
        made = [one(x[rows], training=True) for rows in (slice(0, 3), slice(3, 5), slice(5, 7))]
        loss = tf.reduce_mean((tf.concat(made, 0) - y) ** 2)
    gradients = tape.gradient(loss, [each.value for each in one.trainable_variables])
    keras.optimizers.SGD(0.1, momentum=0.5).apply(gradients, one.trainable_variables)
    found = [each.numpy() for each in model.trainable_variables]
    harness.assert_close(found, [each.numpy() for each in one.trainable_variables], 1e-5)
    harness.assert_replicas_identical(model)


def test_a_replica_s_own_costs_no_collective_and_changes_no_synchronized_layer():
    strategy = harness.strategy(2, batch_normalization="per_replica")
    with strategy.scope():
        models = images_model(2), images_model(2, synchronized=True)
    found = []
    for model in models:
        model.fit(*IMAGES, verbose=0)
        explanation = strategy.explain(model)
        assert not any(each.normalization_bytes for each in explanation.collectives)
        found.append(len(explanation.collectives))
    assert found == [1, 5]  # gradients with the loss; of the others two in each pass


@pytest.mark.parametrize("given", ["synchronized", None, True])
def test_an_unknown_batch_normalization_is_refused(given):
    with pytest.raises(ValueError, match='"whole_batch" or "per_replica", but received'):
        harness.strategy(2, batch_normalization=given)


@harness.in_one_process
@pytest.mark.parametrize("sizes", tiers.first_of(UNEVEN, EVEN), ids=["uneven", "even"])
def test_own_statistics_are_the_weighted_mean_of_the_replicas(sizes):
    x, y = data(sum(sizes), mean=3.0)
    harness.start_over()
    with harness.strategy(3, batch_normalization="per_replica").scope():
        model = first_layer_model(momentum=0.9)
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
