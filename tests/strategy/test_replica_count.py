"""The number of replicas is an int, but for the products that it notes."""

import copy
import json
import pickle

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp.strategy.replica_count import ReplicaCount, Uses

pytestmark = harness.in_one_process


@pytest.fixture
def uses():
    return Uses()


@pytest.fixture
def count(uses):
    return ReplicaCount(4, uses)


def test_products_with_ints_are_noted(count, uses):
    assert (count * 8, 16 * count) == (32, 64)
    batch = 2
    batch *= count
    assert type(batch) is int
    assert uses.products == {32: 8, 64: 16, 8: 2}


def test_other_arithmetic_is_that_of_an_int(count, uses):
    assert (count + 1, 1 + count, count - 1, count / 2, 8 // count) == (5, 5, 3, 2.0, 2)
    assert (count * 0.5, 0.5 * count) == (2.0, 2.0)
    assert count * [1] == [1] * 4
    assert (count == 4, hash(count) == hash(4), str(count), f"{count:02d}") == (True,) * 2 + (
        "4",
        "04",
    )
    assert uses.products == {}


def test_one_replica_grows_nothing(uses):
    assert 64 * ReplicaCount(1, uses) == 64
    assert uses == Uses()


@pytest.mark.parametrize(
    ("use", "unknown"),
    [
        (lambda n: 8 * n, 0),
        (lambda n: f"{n}" + str(n) + repr(n), 0),
        (lambda n: 0.1 * n, 1),
        (lambda n: n * 0.1, 1),
        (lambda n: n, 1),
        (lambda n: None, 1),
    ],
)
def test_what_became_of_a_number_is_known_or_not(use, unknown, uses):
    kept = use(ReplicaCount(4, uses))
    assert uses.unknown == unknown
    del kept


def test_a_number_that_is_kept_is_unknown_until_it_is_given_up(uses):
    kept = ReplicaCount(4, uses)
    assert 8 * kept == 32
    assert uses.unknown == 1
    del kept
    assert uses.unknown == 0


def test_only_the_last_products_are_remembered(count, uses):
    for factor in range(1000):
        assert factor * count == 4 * factor
    assert len(uses.products) == 64
    assert uses.products[4 * 999] == 999


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
    assert strategy.uses_of_replica_count.products == {16: 8}


def test_what_libraries_ask_for_is_no_use_of_the_program():
    strategy = harness.strategy(2)
    with strategy.scope():
        model = harness.dense_model()
    harness.fit_arrays(model)
    assert strategy.uses_of_replica_count == Uses()
