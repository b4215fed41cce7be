"""The home of a shard: outer updates as Keras makes them, and what it keeps of who has come."""

import keras
import numpy as np
import pytest

from tfdp.communication.homes.shard_home import Event, OuterUpdate, ShardHome


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.0), (0.7, 0.9), (0.3, 0.5)])
def test_changes_are_updates_of_keras_nesterov(rate, momentum):
    rng = np.random.default_rng(0)
    first = rng.normal(size=5).astype(np.float32)
    home = ShardHome(first, OuterUpdate(3, rate, momentum))
    variable = keras.Variable(first)
    outer = keras.optimizers.SGD(rate, momentum=momentum, nesterov=momentum > 0)
    for number in range(4):
        change = rng.normal(size=5).astype(np.float32)
        home.push(change, rank=1, number=number, taken=0)
        outer.apply([keras.ops.convert_to_tensor(-change / 3)], [variable])
    np.testing.assert_allclose(home.weights, variable.numpy(), rtol=1e-5, atol=1e-6)


def test_as_many_changes_as_ranks_end_in_their_mean():
    changes = np.float32([[1, 2], [3, 5], [8, 8]])
    home = ShardHome(np.float32([10, 20]), OuterUpdate(3))
    for rank, change in enumerate(changes):
        home.push(change, rank, 1, 0)
    np.testing.assert_allclose(home.weights, [14, 25], rtol=1e-6)


def test_a_home_keeps_its_own_weights_and_tells_how_late_changes_were():
    given, events = np.zeros(2, np.float32), []
    home = ShardHome(given, OuterUpdate(2), events)
    home.push(np.float32([2, 2]), 0, 1, home.version)
    home.push(np.float32([2, 2]), 1, 1, 0)
    home.take(1, 1)
    assert given.tolist() == [0, 0]
    assert home.staleness == {0: 1, 1: 1}
    assert events == [Event("push", 0, 1), Event("push", 1, 1), Event("take", 1, 1)]
