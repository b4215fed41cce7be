"""Calls in whose place each replica runs its own code: what it is given, and when it runs."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import strategy

import tfdp
from tfdp.partition.per_replica_call import own_call, per_replica_call_of
from tfdp.synchronization import LocalSGD

X = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
TABLE = np.arange(15, dtype="float32").reshape(5, 3)
IDS = np.array([4, 0, 4, 1, 0, 0, 2])


def summed(values, are_partials):
    """What a replica's code makes of what it is given: the wholes, dense."""
    context = tf.distribute.get_replica_context()
    dense = [tf.convert_to_tensor(value) for value in values]
    return [
        context.all_reduce("SUM", each) if is_partial else each
        for each, is_partial in zip(dense, are_partials, strict=True)
    ]


@pytest.mark.parametrize("length", [7, 2])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 1, 5))
def test_replicas_are_given_summands_that_add_up_and_wholes(replicas, length):
    own = strategy(replicas)
    with own.scope():
        table, kept = tf.Variable(TABLE), tf.Variable(np.zeros((2, 5, 3), "float32"))
    seen = []

    def write(values, are_partials):
        seen.append(list(are_partials))
        kept.assign(tf.stack(summed(values, are_partials)))

    @own.partitioned
    def step(x, ids):
        with tf.GradientTape() as tape:
            looked_up = tf.gather(table, ids)
            loss = tf.reduce_mean(tf.sin(looked_up * x))
        rows = tape.gradient(loss, table)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cos(x @ tf.transpose(table)))
        dense = tape.gradient(loss, table)
        before = kept.read_value()
        own_call([rows, dense, table * 2.0], [kept], lambda v, s: write(v[:2], s[:2]))
        return before, kept.read_value(), tf.convert_to_tensor(rows), dense

    before, after, rows, dense = step(X[:length], IDS[:length])
    assert not before.numpy().any()
    np.testing.assert_allclose(after, [rows, dense], rtol=1e-5, atol=1e-6)
    for copy in own.experimental_local_results(kept):
        np.testing.assert_allclose(copy, [rows, dense], rtol=1e-5, atol=1e-6)
    assert seen == [[True, True]] * replicas


@pytest.mark.parametrize("length", [7, 2])
def test_what_a_call_gives_is_whole_or_each_replicas_own(length):
    devices = ["CPU:0", "CPU:1", "CPU:2"]
    own = tfdp.DataParallelStrategy(devices, synchronization=LocalSGD(2))
    with own.scope():
        table, copies = tf.Variable(TABLE), tf.Variable(tf.zeros([3]))

    @own.partitioned
    def step(x, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.sin(tf.gather(table, ids) * x))
        rows = tape.gradient(loss, table)
        (total,) = own_call(
            [rows],
            [],
            lambda values, are_partials: summed(values, are_partials),
            lambda values: [tf.convert_to_tensor(values[0])],
        )
        mine = own_call(
            [tf.reduce_sum(x, 0)], [], lambda values, _: values, list, gives_alike=False
        )
        copies.assign(2.0 * mine[0])
        return total, tf.convert_to_tensor(rows)

    total, rows = step(X[:length], IDS[:length])
    np.testing.assert_allclose(total, rows, rtol=1e-5, atol=1e-6)
    held = [copy.numpy() for copy in own.experimental_local_results(copies)]
    np.testing.assert_allclose(sum(held), 2 * X[:length].sum(0), rtol=1e-5, atol=1e-5)
    assert not np.array_equal(held[0], held[1])


def test_a_whole_value_is_given_as_such():
    own = strategy(2)
    seen = []
    with own.scope():
        weight = tf.Variable([1.0, 2.0])

    @own.partitioned
    def step(x):
        own_call(
            [weight * 3.0, tf.sign(tf.reduce_sum(x, 0))],
            [weight],
            lambda values, are_partials: seen.append(are_partials),
        )
        return tf.reduce_sum(x)

    step(X)
    assert seen == [[False, False]] * 2


def test_rows_without_the_shape_of_their_tensor_are_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`dense_shape`"):
        own_call([tf.IndexedSlices(tf.ones([1, 2]), [0])], [], lambda values, partials: None)


def test_other_functions_are_no_calls_of_the_kind():
    assert per_replica_call_of("__inference_train_step_7") is None
