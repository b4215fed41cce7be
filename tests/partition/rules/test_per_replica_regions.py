"""Calls in whose place each replica runs its own code: what it is given, and when it runs."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import strategy

import tfdp
from tfdp.base.sharding import share_sizes
from tfdp.communication.engines import sequence
from tfdp.partition import PerReplicaRegion
from tfdp.partition.flattening import CALLS
from tfdp.partition.per_replica_call import own_call, per_replica_call_of
from tfdp.partition.source import SourceGraph
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


def test_a_call_of_another_function_is_none_and_what_it_stands_for_lives_as_its_graph_does():
    @tf.function
    def step(x):
        own_call([x], [], lambda values, partials: None)
        return tf.function(tf.sin)(x)

    graph = step.get_concrete_function(tf.ones([2])).graph
    source = SourceGraph(graph)
    calls = [per_replica_call_of(op) for op in source.ops if op.type in CALLS]
    assert [call is None for call in calls] == [False, True]
    kept = weakref.ref(calls[0])
    del calls
    gc.collect()
    assert kept() is not None
    del step, graph, source
    gc.collect()
    assert kept() is None


ROWS = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
GAMMA, UPSTREAM = np.arange(1, 5, dtype="float32"), np.cos(ROWS)


def normalized(x, gamma):
    """Rows that are normalized by their own moments, and these."""
    mean, variance = tf.nn.moments(x, 0)
    return gamma * (x - mean) / tf.sqrt(variance + 0.01), mean, variance


def by_shares(sizes, x=ROWS):
    """What the replicas have together: rows, means by rows, gradients and second ones."""
    found, begin = [], 0
    for size in sizes:
        rows = slice(begin, begin + size)
        begin += size
        if size:
            found.append((size, of_one(x[rows], GAMMA, UPSTREAM[rows], lambda x: None)))
    total = sum(size for size, _ in found)

    def joined(index):
        return tf.concat([each[index] for _, each in found], 0)

    def mean(index):
        return sum(size / total * each[index] for size, each in found)

    def summed(index):
        return sum(each[index] for _, each in found)

    return joined(0), mean(1), mean(2), joined(3), summed(4), joined(5), summed(6)


def of_one(x, gamma, upstream, region_of):
    x, gamma, upstream = map(tf.convert_to_tensor, (x, gamma, upstream))
    with tf.GradientTape() as outer:
        outer.watch([x, gamma])
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            region = region_of(x)
            if region is None:
                y, mean, variance = normalized(x, gamma)
            else:
                y, mean, variance = normalized(region.rows, region.weight_in(gamma))
                y, mean, variance = region.rows_out(y), *map(region.mean_out, (mean, variance))
            loss = tf.reduce_sum(tf.sin(y) * upstream)
        slopes = tape.gradient(loss, [x, gamma])
        penalty = tf.reduce_sum(slopes[0] ** 2)
    return y, mean, variance, *slopes, *outer.gradient(penalty, [x, gamma])


@pytest.mark.parametrize("replicas", tiers.first_of(3, 1, 5))
@pytest.mark.parametrize("length", [7, 2])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_each_replica_takes_its_rows_for_the_batch(length, replicas, is_fixed):
    sizes = share_sizes(length, replicas)
    gamma = tf.constant(GAMMA)

    def step(x, upstream):
        return of_one(x, gamma, upstream, PerReplicaRegion)

    specs = [tf.TensorSpec([length if is_fixed else None, 4])] * 2
    program = strategy(replicas).partitioned(step, input_signature=specs)
    for found, expected in zip(
        program(ROWS[:length], UPSTREAM[:length]), by_shares(sizes), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_on_one_device_a_region_changes_nothing():
    plain = of_one(ROWS, GAMMA, UPSTREAM, lambda x: None)
    for found, expected in zip(of_one(ROWS, GAMMA, UPSTREAM, PerReplicaRegion), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_region_without_cut_rows_is_one_devices():
    def step(factor):
        whole = factor * ROWS  # every replica has it
        return of_one(whole, GAMMA, UPSTREAM, PerReplicaRegion)

    found = strategy(3).partitioned(step)(tf.constant(2.0))
    expected = of_one(2 * ROWS, GAMMA, UPSTREAM, lambda x: None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_in_a_region_what_was_computed_whole_is_a_replica_s_own_rows_again():
    def step(x, upstream):
        return of_one(tf.sort(x, 0), tf.constant(GAMMA), upstream, PerReplicaRegion)

    found = strategy(3).partitioned(step)(ROWS, UPSTREAM)
    for one, other in zip(found, by_shares(share_sizes(7, 3), np.sort(ROWS, 0)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_a_region_needs_is_not_sent():
    def step(x):
        region = PerReplicaRegion(x)
        y, mean, variance = normalized(region.rows, region.weight_in(tf.constant(GAMMA)))
        return region.rows_out(y), region.mean_out(mean), region.mean_out(variance)

    explanation = strategy(3).partitioned(step).explain(ROWS)
    assert [(each.kind, each.tensors) for each in explanation.collectives] == [("sum", 2)]


def test_rows_that_all_replicas_have_come_out_as_their_own():
    def step(x):
        x = tf.ensure_shape(x, [7, 4])
        return x + PerReplicaRegion(x).rows_out(tf.constant(UPSTREAM))

    np.testing.assert_allclose(strategy(3).partitioned(step)(ROWS), ROWS + UPSTREAM, rtol=1e-6)


def test_a_weight_may_come_in_before_rows_that_wait_for_a_sum():
    def step(x):
        gamma = tf.constant(GAMMA)
        region = PerReplicaRegion(x / tf.reduce_sum(tf.abs(x)))
        y = region.rows_out(normalized(region.rows, region.weight_in(gamma))[0])
        return y, *tf.gradients(y * UPSTREAM, [x, gamma])

    program = strategy(3).partitioned(step, input_signature=[tf.TensorSpec([7, 4])])
    scaled = ROWS / np.abs(ROWS).sum()
    found = program(ROWS)
    np.testing.assert_allclose(found[0], by_shares([3, 2, 2], scaled)[0], rtol=1e-4, atol=1e-5)


def test_a_mask_goes_in_with_the_rows():
    def step(x):
        mask = tf.cast(tf.range(tf.shape(x)[0]) % 3 > 0, tf.float32)[:, tf.newaxis]
        region = PerReplicaRegion(tf.sin(x))
        own = region.rows_in(mask)
        mean = tf.reduce_sum(region.rows * own, 0) / tf.reduce_sum(own)
        return region.rows_out((region.rows - mean) * own)

    expected = []
    for rows in (slice(0, 3), slice(3, 5), slice(5, 7)):
        mask = (np.arange(7) % 3 > 0).astype("float32")[rows, np.newaxis]
        x = np.sin(ROWS[rows])
        expected.append((x - (x * mask).sum(0) / mask.sum()) * mask)
    found = strategy(3).partitioned(step)(ROWS)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-5, atol=1e-6)


def test_what_a_branch_exchanges_is_in_the_order_of_all_else():
    """Nothing orders a branch and what runs beside the collectives of the program's function."""
    own, seen = strategy(2), []
    with own.scope():
        kept = tf.Variable(TABLE)

    def total(values, are_partials):
        seen.append(sequence.is_beside())
        return summed(values, are_partials)

    @own.partitioned
    def step(x):
        def shared():
            return own_call([tf.reduce_sum(x, 0)], [], total, list, beside=True)[0]

        kept.assign_add(tf.broadcast_to(shared(), kept.shape))
        return tf.cond(tf.reduce_any(kept > 0), shared, lambda: tf.zeros([3]))

    np.testing.assert_allclose(step(X), X.sum(0), rtol=1e-5, atol=1e-6)
    assert sorted(set(seen)) == [False, True]
    assert seen[0]
