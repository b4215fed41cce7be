"""Random layers: other numbers on every replica, the same numbers in every run."""

import itertools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
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
    [
        n if n == "Dropout with a seed" else pytest.param(n, marks=pytest.mark.slow)
        for n in RANDOM_LAYERS
    ],
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


@harness.on_three_and_four_replicas
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
