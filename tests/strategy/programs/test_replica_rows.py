"""Partitioned functions of ragged and sparse tensors of which each replica has its rows."""

import functools

import harness
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.communication.replicas import sharder_of

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


def of_dense(x, y):
    """What becomes of rows that were made equally long, of any width and of a given one."""
    table, default = tf.reshape(tf.cos(tf.range(27.0)), [9, 3]), tf.constant([0.5, -1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch([table, default])
        found = tf.gather(table, x)
        dense = found.to_tensor(default)
        narrow = found.to_tensor(shape=[None, 2, 3])
        sums = tf.reduce_sum(tf.tanh(dense), [1, 2]) + tf.reduce_sum(narrow, [1, 2])
        loss = tf.reduce_mean(tf.square(sums - y))
    gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, [table, default])]
    return dense, narrow, tf.cast(x, tf.int32).to_tensor(-1), tf.shape(dense), loss, gradients


def of_nested_dense(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x.flat_values)
        dense = x.to_tensor(shape=[None, None, 2, 2])
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(dense), [1, 2, 3]) * y)
    return dense, x.to_tensor(1.5), loss, tape.gradient(loss, x.flat_values)


def of_sparse(x, y):
    kernel = tf.reshape(tf.range(12.0), [6, 2])
    found = tf.sparse.sparse_dense_matmul(x, kernel) * y[:, None]
    return x, found, tf.sparse.to_dense(x), tf.sparse.reduce_sum(x, 0), tf.reduce_mean(found)


def few(generator, length):
    dense = np.zeros((length, 6), "float32")
    dense[-1, 1:3] = generator.normal(size=2)  # the other replicas' rows have no values
    return tf.sparse.from_dense(dense)


def of_gradients_of_values(x, y):
    kernel = tf.reshape(tf.cos(tf.range(18.0)), [6, 3])
    with tf.GradientTape() as tape:
        tape.watch(x.values)
        product = tf.sparse.sparse_dense_matmul(x, kernel)
        loss = tf.reduce_mean(tf.square(product - y[:, None]))
    return tape.gradient(loss, x.values), loss


def of_products(x, y):
    """What Keras' layers compute of sparse inputs, and what `tf.sparse` does, with gradients."""
    kernel, other = (tf.reshape(tf.cos(tf.range(at, at + 18.0)), [6, 3]) for at in (0.0, 1.0))
    with tf.GradientTape() as tape:
        tape.watch([kernel, other])
        filled, _ = tf.sparse.fill_empty_rows(x, 0.0)
        ids = tf.SparseTensor(filled.indices, filled.indices[:, 1], filled.dense_shape)
        looked_up = tf.nn.embedding_lookup_sparse(kernel, ids, filled, combiner="sum")
        product = tf.sparse.sparse_dense_matmul(x, tf.nn.relu(other))
        loss = tf.reduce_mean(tf.square(looked_up - y[:, None]) + tf.tanh(product))
    gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, [kernel, other])]
    return filled, looked_up, product, loss, gradients, tf.sparse.to_dense(x)


CASES = {
    "gradients of values": (sparse, of_gradients_of_values),
    "gradients of few values": (few, of_gradients_of_values),
    "products of few values": (few, of_products),
    "products": (sparse, of_products),
    "products without values": (nothing, of_products),
    "ragged": (ragged, of_ragged),
    "nested": (nested, of_nested),
    "dense": (ragged, of_dense),
    "nested and dense": (nested, of_nested_dense),
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
    cuts = sharder_of(strategy).shards(
        iter(strategy.experimental_distribute_dataset(dataset(make)))
    )
    check(tf.function(lambda: partitioned.on_shares(next(cuts))), make, function)
    return {each.operation for each in partitioned.report.whole}


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
@pytest.mark.parametrize("case", CASES)
def test_shares_give_what_one_device_gives(case, replicas):
    check_shares(case, harness.strategy(replicas))


def test_of_products_with_sparse_rows_only_unique_ids_are_found_in_the_whole_batch():
    assert check_shares("products", harness.strategy(3)) == {"Unique"}


def test_rows_are_made_equally_long_by_the_replicas_that_have_them():
    strategy = harness.strategy(3)
    assert "RaggedTensorToTensor" not in check_shares("ragged", strategy)
    # Which entries of a gradient are those of values, TensorFlow asks of the whole batch.
    for case in ("dense", "nested and dense"):
        assert check_shares(case, strategy) == {"Where", "GatherV2"}


@pytest.mark.parametrize("case", CASES)
def test_elements_of_a_distributed_dataset_give_what_one_device_gives(case):
    make, function = CASES[case]
    strategy = harness.strategy(3)
    partitioned = strategy.partitioned(function)
    elements = iter(strategy.experimental_distribute_dataset(dataset(make)))
    check(lambda: partitioned(*next(elements)), make, function)
