"""Whatever the topology, N replicas train as one device."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp import topology

CHOICES = ["direct", "halving_doubling", "hierarchical", "ring", "torus", "tree", "auto"]


def build():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(6, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0, gradient_accumulation_steps=2)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize(
    "choice",
    [pytest.param(c, marks=[] if c == "ring" else pytest.mark.exhaustive) for c in CHOICES],
)
def test_every_topology_trains_as_one_device(choice, replicas, monkeypatch):
    made = harness.strategy
    expected = harness.train(build, harness.fit_arrays)
    monkeypatch.setattr(harness, "strategy", lambda n, **options: made(n, topology=choice))
    harness.assert_same_outcome(harness.train(build, harness.fit_arrays, replicas), expected)


@pytest.mark.parametrize("rule", tiers.first_of(topology.Hierarchical(), topology.Ring()), ids=str)
def test_gradients_flow_through_all_reduce(rule, replicas):
    strategy = harness.strategy(replicas, topology=rule)
    own = harness.per_replica(strategy, [np.full(3, r + 1.0, "float32") for r in range(replicas)])

    @tf.function
    def step():
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.distribute.get_replica_context().all_reduce("SUM", x)
                y = tf.reduce_sum(total**2)
            return tape.gradient(y, x)

        return strategy.run(gradient, args=(own,))

    # Each of n replicas' y holds x in its sum once.
    expected = np.full(3, replicas * 2 * sum(range(1, replicas + 1)), "float32")
    for got in strategy.experimental_local_results(step()):
        np.testing.assert_array_equal(got, expected)
