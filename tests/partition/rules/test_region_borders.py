"""Regions in which each replica computes its own: shares are taken for batches of their own."""

import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import strategy

from tfdp.base.batch_shards import share_sizes
from tfdp.partition import PerReplicaRegion

X = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
GAMMA, UPSTREAM = np.arange(1, 5, dtype="float32"), np.cos(X)


def normalized(x, gamma):
    """Rows that are normalized by their own moments, and these."""
    mean, variance = tf.nn.moments(x, 0)
    return gamma * (x - mean) / tf.sqrt(variance + 0.01), mean, variance


def by_shares(sizes, x=X):
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
        program(X[:length], UPSTREAM[:length]), by_shares(sizes), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_on_one_device_a_region_changes_nothing():
    plain = of_one(X, GAMMA, UPSTREAM, lambda x: None)
    for found, expected in zip(of_one(X, GAMMA, UPSTREAM, PerReplicaRegion), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_region_without_cut_rows_is_one_devices():
    def step(factor):
        whole = factor * X  # every replica has it
        return of_one(whole, GAMMA, UPSTREAM, PerReplicaRegion)

    found = strategy(3).partitioned(step)(tf.constant(2.0))
    expected = of_one(2 * X, GAMMA, UPSTREAM, lambda x: None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_in_a_region_what_was_computed_whole_is_a_replica_s_own_rows_again():
    def step(x, upstream):
        return of_one(tf.sort(x, 0), tf.constant(GAMMA), upstream, PerReplicaRegion)

    found = strategy(3).partitioned(step)(X, UPSTREAM)
    for one, other in zip(found, by_shares(share_sizes(7, 3), np.sort(X, 0)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_a_region_needs_is_not_sent():
    def step(x):
        region = PerReplicaRegion(x)
        y, mean, variance = normalized(region.rows, region.weight_in(tf.constant(GAMMA)))
        return region.rows_out(y), region.mean_out(mean), region.mean_out(variance)

    explanation = strategy(3).partitioned(step).explain(X)
    assert [(each.kind, each.tensors) for each in explanation.collectives] == [("sum", 2)]


def test_rows_that_all_replicas_have_come_out_as_their_own():
    def step(x):
        x = tf.ensure_shape(x, [7, 4])
        return x + PerReplicaRegion(x).rows_out(tf.constant(UPSTREAM))

    np.testing.assert_allclose(strategy(3).partitioned(step)(X), X + UPSTREAM, rtol=1e-6)


def test_a_weight_may_come_in_before_rows_that_wait_for_a_sum():
    def step(x):
        gamma = tf.constant(GAMMA)
        region = PerReplicaRegion(x / tf.reduce_sum(tf.abs(x)))
        y = region.rows_out(normalized(region.rows, region.weight_in(gamma))[0])
        return y, *tf.gradients(y * UPSTREAM, [x, gamma])

    program = strategy(3).partitioned(step, input_signature=[tf.TensorSpec([7, 4])])
    scaled = X / np.abs(X).sum()
    found = program(X)
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
        x = np.sin(X[rows])
        expected.append((x - (x * mask).sum(0) / mask.sum()) * mask)
    found = strategy(3).partitioned(step)(X)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-5, atol=1e-6)
