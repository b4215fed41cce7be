import numpy as np
import pytest
import tensorflow as tf
from partition.check import strategy

from tfdp.errors import PartitionError

how = tf.VariableAggregation
ON_READ = tf.VariableSynchronization.ON_READ


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


def made(replicas, value, **options):
    with strategy(replicas).scope():
        return tf.Variable(value, **options)


@pytest.mark.parametrize("count", [7, 2])
def test_what_is_written_is_whole_on_every_copy(count):
    total, last = made(3, tf.zeros([3])), made(3, tf.zeros([2, 3]))

    @strategy(3).partitioned
    def step(x):
        total.assign_add(tf.reduce_sum(x, 0))
        last.assign(x[-2:])
        return total.read_value() * 2

    x = rows(count)
    np.testing.assert_allclose(step(x), 2 * x.sum(0), rtol=1e-5, atol=1e-6)
    for variable, expected in ((total, x.sum(0)), (last, x[-2:])):
        copies = [copy.numpy() for copy in variable.values]
        np.testing.assert_allclose(copies[0], expected, rtol=1e-5, atol=1e-6)
        assert all((copy == copies[0]).all() for copy in copies)


def test_a_sum_of_shares_is_written_without_a_collective():
    shares = made(3, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(3).partitioned
    def step(x):
        shares.assign_add(tf.reduce_sum(x, 0))
        return tf.constant(0.0)

    for _ in range(2):
        step(rows(7))
    assert not step.report.exchanged
    np.testing.assert_allclose(shares.read_value(), 2 * rows(7).sum(0), rtol=1e-5, atol=1e-6)


def test_a_sum_of_shares_is_read_whole_and_set():
    shares = made(3, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(3).partitioned
    def step(x):
        shares.assign(tf.ones([3]))
        shares.assign_sub(tf.reduce_sum(x, 0))
        return tf.square(shares.read_value())

    expected = 1 - rows(7).sum(0)
    np.testing.assert_allclose(step(rows(7)), expected**2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shares.read_value(), expected, rtol=1e-4, atol=1e-5)


def test_a_mean_of_copies_is_one_value():
    mean = made(3, tf.ones([3]), synchronization=ON_READ, aggregation=how.MEAN, trainable=False)

    @strategy(3).partitioned
    def step(x):
        mean.assign(0.5 * mean.read_value() + tf.reduce_mean(x, 0))
        return tf.exp(mean.read_value())

    expected = 0.5 + rows(7).mean(0)
    np.testing.assert_allclose(step(rows(7)), np.exp(expected), rtol=1e-5)
    np.testing.assert_allclose(mean.read_value(), expected, rtol=1e-5)


def test_rows_of_a_table_are_written_by_all():
    table = made(3, tf.zeros([5, 3]))

    @strategy(3).partitioned
    def step(x, places):
        table.scatter_add(tf.IndexedSlices(x, places))
        return tf.reduce_sum(table)

    x, places = rows(7), np.array([0, 4, 4, 1, 0, 3, 4])
    step(x, places)
    expected = np.zeros([5, 3], "float32")
    np.add.at(expected, places, x)
    for copy in table.values:
        np.testing.assert_allclose(copy.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_part_of_a_sum_of_shares_is_not_written():
    shares = made(2, tf.zeros([3]), synchronization=ON_READ, aggregation=how.SUM, trainable=False)

    @strategy(2).partitioned
    def step(x):
        tf.raw_ops.ResourceScatterUpdate(
            resource=shares.handle, indices=[0], updates=[tf.reduce_sum(x)]
        )
        return x

    with pytest.raises(PartitionError, match="each replica has a share of"):
        step(rows(4))


def test_integers_count_as_on_one_device():
    count = made(3, tf.constant(0, tf.int64))

    @strategy(3).partitioned
    def step(x):
        count.assign_add(1)
        count.assign_add(tf.cast(tf.shape(x)[0], tf.int64))
        return count.read_value()

    assert [int(step(rows(size))) for size in (7, 2)] == [8, 11]
