"""Partitioned functions on shares: what is one batch, and what has a length of its own."""

import harness
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.communication.replicas import sharder_of

pytestmark = harness.in_one_process


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3)).astype("float32")


def batches(lengths, known=False):
    """A dataset of tuples, each of whose leaves has a length of its own in each element."""
    elements = [
        tuple(rows(length, index) for index, length in enumerate(element)) for element in lengths
    ]
    specs = tuple(tf.TensorSpec([len(leaf) if known else None, 3]) for leaf in elements[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=specs)
    return elements, dataset.apply(tf.data.experimental.assert_cardinality(len(elements)))


def programs(partitioned):
    """How the arguments of the programs are cut that were made."""
    ((calls,),) = partitioned._traces.values()
    return [cut.batches for cut in calls._made]


def check(lengths, function, known=False, replicas=3, in_graph=True):
    """Asserts that replicas give what one device gives, and returns the cuts of their programs."""
    elements, dataset = batches(lengths, known)
    strategy = harness.strategy(replicas)
    partitioned = strategy.partitioned(function)
    cuts = sharder_of(strategy).shards(iter(strategy.experimental_distribute_dataset(dataset)))
    step = tf.function(lambda: partitioned.on_shares(next(cuts)))
    for element in elements:
        found = step() if in_graph else partitioned.on_shares(next(cuts))
        for one, own in zip(function(element), found, strict=True):
            np.testing.assert_allclose(own, one, rtol=1e-5, atol=1e-5)
    return programs(partitioned)


def by_themselves(leaves):
    return [tf.reduce_mean(tf.tanh(leaf), 0) for leaf in leaves]


def together(leaves):
    return [tf.reduce_mean(tf.square(leaves[0] - leaves[1])), leaves[0] * 2]


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2))
def test_leaves_of_one_length_are_one_batch_and_no_other_program_is_made(replicas):
    assert check([(7, 7), (1, 1)], together, replicas=replicas) == [(0, 0)]


@pytest.mark.parametrize("in_graph", [True, False])
def test_leaves_that_differ_in_length_are_batches_of_their_own(in_graph):
    made = check([(7, 4), (1, 7), (1, 2)], by_themselves, in_graph=in_graph)
    assert made == ([(0, 0), (0, 1)] if in_graph else [(0, 1)])


def test_lengths_that_differ_now_and_then_take_another_program_only_then():
    def function(leaves):
        first, second, third = leaves
        return [tf.reduce_sum(first), tf.reduce_mean(first, 0), first * 2, second - third]

    made = check([(5, 5, 5), (4, 6, 6), (5, 5, 5), (1, 2, 2)], function)
    assert made == [(0, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize("lengths", [(7, 4, 7), (6, 3, 3)])
def test_of_lengths_that_tracing_knows_one_program_is_made(lengths):
    (made,) = check([lengths] * 2, by_themselves, known=True)
    assert made == ((0, 1, 0) if lengths[0] == lengths[2] else (0, 1, 1))


@pytest.mark.parametrize("lengths", [[(4, 0), (0, 4)], [(0, 0), (3, 3)]])
def test_a_leaf_without_rows_is_one_devices(lengths):
    def function(leaves):
        return [tf.reduce_sum(tf.tanh(leaf), 0) for leaf in leaves] + [2 * leaf for leaf in leaves]

    check(lengths, function)


def test_an_empty_output_list_needs_no_value():
    strategy = harness.strategy(2)
    with strategy.scope():
        total = tf.Variable(tf.zeros([3]))

    def function(leaves):
        total.assign_add(tf.reduce_sum(leaves[0], 0) + tf.reduce_mean(leaves[1], 0))

    elements, dataset = batches([(4, 5), (3, 3)])
    partitioned = strategy.partitioned(function)
    cuts = sharder_of(strategy).shards(iter(strategy.experimental_distribute_dataset(dataset)))
    step = tf.function(lambda: partitioned.on_shares(next(cuts)))
    for _ in elements:
        step()
    expected = sum(a.sum(0) + b.mean(0) for a, b in elements)
    np.testing.assert_allclose(total.values[0], expected, rtol=1e-5, atol=1e-5)
