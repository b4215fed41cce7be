"""The number of replicas is an int, but for the products that it notes."""

import copy
import json
import pickle

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp.strategy.replica_count import ReplicaCount

pytestmark = harness.in_one_process


@pytest.fixture
def products():
    return {}


@pytest.fixture
def count(products):
    return ReplicaCount(4, products)


def test_products_with_ints_are_noted(count, products):
    assert (count * 8, 16 * count) == (32, 64)
    batch = 2
    batch *= count
    assert type(batch) is int
    assert products == {32: 8, 64: 16, 8: 2}


def test_other_arithmetic_is_that_of_an_int(count, products):
    assert (count + 1, 1 + count, count - 1, count / 2, 8 // count) == (5, 5, 3, 2.0, 2)
    assert (count * 0.5, 0.5 * count) == (2.0, 2.0)
    assert count * [1] == [1] * 4
    assert (count == 4, hash(count) == hash(4), str(count), f"{count:02d}") == (True,) * 2 + (
        "4",
        "04",
    )
    assert products == {}


def test_one_replica_grows_nothing(products):
    assert 64 * ReplicaCount(1, products) == 64
    assert products == {}


def test_it_can_be_copied_and_written(count):
    for other in (copy.deepcopy(count), pickle.loads(pickle.dumps(count))):
        assert type(other) is int
        assert other == 4
    assert json.dumps({"replicas": count}) == '{"replicas": 4}'


def test_numpy_and_tensorflow_take_it_for_an_int(count):
    assert np.zeros(count).shape == (4,)
    assert np.array(count).dtype == np.int64
    assert tf.constant(count).dtype == tf.int32
    assert (tf.constant(8.0) / count).numpy() == 2.0
    assert (tf.constant(8.0) * count).numpy() == 32.0
    assert tf.function(lambda n: tf.range(n))(count).shape == (4,)


def test_the_strategy_returns_it():
    strategy = harness.strategy(2)
    assert isinstance(strategy.num_replicas_in_sync, int)
    assert 8 * strategy.num_replicas_in_sync == 16
    assert strategy.products_of_replicas == {16: 8}
