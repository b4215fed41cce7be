"""Partitioned functions of ragged and sparse tensors of which each replica has its rows."""

import functools

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp.replicas import cutter_of

pytestmark = harness.in_one_process

# No number of replicas shares them evenly, and one leaves replicas without rows.
LENGTHS = (5, 7, 1, 6)


def ragged(generator, length):
    counts = generator.integers(0, 4, length)
    return tf.RaggedTensor.from_row_lengths(generator.integers(1, 9, counts.sum()), counts)


def nested(generator, length):
    inner = ragged(generator, length)
    lengths = generator.integers(0, 3, len(inner.values))
    values = generator.normal(size=(lengths.sum(), 2)).astype("float32")
    return inner.with_values(tf.RaggedTensor.from_row_lengths(values, lengths))


def sparse(generator, length):
    dense = generator.normal(size=(length, 6)).astype("float32")
    dense[generator.integers(0, length)] = 0  # a row without values
    return tf.sparse.from_dense(np.where(dense > 0.3, dense, 0))


def nothing(generator, length):
    return tf.sparse.from_dense(np.zeros((length, 6), "float32"))


def of_ragged(x, y):
    table = tf.reshape(tf.range(27.0), [9, 3])
    means = tf.reduce_sum(tf.gather(table, x), 1) * y[:, None]
    return x, x.to_tensor(), means, tf.reduce_sum(means), x.row_lengths(), tf.reduce_max(x)


def of_nested(x, y):
    sums = tf.reduce_sum(tf.reduce_sum(x, 2), 1)
    return x, sums, x.to_tensor(), tf.reduce_mean(y)


def of_sparse(x, y):
    kernel = tf.reshape(tf.range(12.0), [6, 2])
    found = tf.sparse.sparse_dense_matmul(x, kernel) * y[:, None]
    return x, found, tf.sparse.to_dense(x), tf.sparse.reduce_sum(x, 0), tf.reduce_mean(found)


CASES = {
    "ragged": (ragged, of_ragged),
    "nested": (nested, of_nested),
    "sparse": (sparse, of_sparse),
    "without values": (nothing, of_sparse),
}


@functools.cache
def batches(make):
    generator = np.random.default_rng(0)
    return [
        (make(generator, length), generator.normal(size=length).astype("float32"))
        for length in LENGTHS
    ]


def dataset(make):
    first, *others = map(tf.data.Dataset.from_tensors, batches(make))
    for each in others:
        first = first.concatenate(each)
    return first


def check(step, make, function):
    for element in batches(make):
        expected, found = function(*element), step()
        pairs = zip(
            tf.nest.flatten(expected, expand_composites=True),
            tf.nest.flatten(found, expand_composites=True),
            strict=True,
        )
        for one, own in pairs:
            np.testing.assert_allclose(own, one, rtol=1e-5, atol=1e-5)


def check_shares(case, strategy):
    """Asserts that a strategy's replicas give of their shares what one device gives."""
    make, function = CASES[case]
    partitioned = strategy.partitioned(lambda rows: function(*rows))
    cuts = cutter_of(strategy).cuts(iter(strategy.experimental_distribute_dataset(dataset(make))))
    check(tf.function(lambda: partitioned.on_shares(next(cuts))), make, function)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_shares_give_what_one_device_gives(case, replicas):
    check_shares(case, harness.strategy(replicas))


@pytest.mark.parametrize("case", CASES)
def test_elements_of_a_distributed_dataset_give_what_one_device_gives(case):
    make, function = CASES[case]
    strategy = harness.strategy(3)
    partitioned = strategy.partitioned(function)
    elements = iter(strategy.experimental_distribute_dataset(dataset(make)))
    check(lambda: partitioned(*next(elements)), make, function)
