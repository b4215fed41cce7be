import re

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, compare, strategy
from partition.drawn import of_drawn_batches
from partition.examples import cuts, length, of_any_axes, turned
from partition.samples import sample

RANDOM = np.random.default_rng(5)
RAW = tf.raw_ops
TABLE = RANDOM.normal(1, 2, [6, 3]).astype(np.float32)
TABLES = RANDOM.normal(1, 2, [3, 6, 2]).astype(np.float32)


def batch(length):
    """Features, two indices of each example, and one."""
    return (
        RANDOM.normal(1, 2, [length, 5, 4]).astype(np.float32),
        RANDOM.integers(0, 4, [length, 2]).astype(np.int32),
        RANDOM.integers(0, 6, [length]).astype(np.int32),
    )


# Uneven shares, and fewer examples than three replicas.
in_shares = pytest.mark.parametrize("batches", [batch(7), batch(2)], ids=["uneven", "fewer"])


def whole_rows(x):
    """Whole numbers from 0 to 4 on every replica, two for each example."""
    numbers = RAW.LinSpace(start=0.0, stop=4.0, num=2 * length(x))
    return tf.reshape(tf.cast(numbers, tf.int32), [length(x), 2])


KEPT = {
    "GatherV2": (lambda x, i, j: tf.gather(TABLE, i), "axis 0"),
    "GatherV2 behind": (lambda x, i, j: tf.gather(TABLES, i, axis=1), "axis 1"),
    "GatherV2 of the last": (lambda x, i, j: tf.gather(TABLE, j % 3, axis=-1), "axis 1"),
    "GatherV2 by turned ones": (lambda x, i, j: tf.gather(TABLES, tf.transpose(i) % 3), "axis 1"),
    "GatherV2 of columns": (lambda x, i, j: tf.gather(x, [3, 1, 1], axis=1), "axis 0"),
    "GatherV2 ahead of the batch": (lambda x, i, j: tf.gather(turned(x), [[3], [1]]), "axis 2"),
    "GatherV2 by one": (lambda x, i, j: tf.gather(turned(x), 2), "axis 0"),
    "GatherV2 in each": (lambda x, i, j: tf.gather(x, i, batch_dims=1), "axis 0"),
    "GatherV2 in each, behind": (lambda x, i, j: tf.gather(x, i, axis=2, batch_dims=1), "axis 0"),
    "GatherV2 in each of pairs": (
        lambda x, i, j: tf.gather(x[:, :2], i[..., tf.newaxis], batch_dims=2),
        "axis 0",
    ),
    "GatherV2 in each of a whole": (
        lambda x, i, j: tf.gather(tf.ones([length(x), 5, 4]), i, batch_dims=-1),
        "axis 0",
    ),
    "GatherV2 in each of what is whole": (
        lambda x, i, j: tf.gather(whole_rows(x), i % 2, batch_dims=1),
        "axis 0",
    ),
    "GatherV2 in each, by what is whole": (
        lambda x, i, j: tf.gather(x, whole_rows(x), batch_dims=1),
        "axis 0",
    ),
    "GatherV2 by indices with whole rows in common": (
        lambda x, i, j: tf.gather(TABLES, tf.stack([j, 5 - j, j]), batch_dims=1),
        "axis 1",
    ),
    "GatherV2 ahead of the batch, with rows in common": (
        lambda x, i, j: tf.gather(tf.transpose(x, [1, 2, 0]), [[3, 1, 0]] * 5, batch_dims=1),
        "axis 2",
    ),
    "GatherV2 with other rows in common": (
        lambda x, i, j: tf.gather(turned(x), [[3, 1]] * 5, axis=2, batch_dims=1),
        "axis 1",
    ),
    "GatherNd": (lambda x, i, j: tf.gather_nd(TABLE, i % 3), "axis 0"),
    "GatherNd of rows": (lambda x, i, j: tf.gather_nd(TABLE, i[..., tf.newaxis]), "axis 0"),
    "GatherNd of columns": (lambda x, i, j: tf.gather_nd(turned(x), [[3], [1]]), "axis 1"),
    "OneHot": (lambda x, i, j: tf.one_hot(i, 4), "axis 0"),
    "OneHot ahead": (lambda x, i, j: tf.one_hot(j, 6, axis=0), "axis 1"),
    "OneHot between": (lambda x, i, j: tf.one_hot(tf.transpose(i), 4, axis=1), "axis 2"),
    "OneHot of numbers": (
        lambda x, i, j: tf.one_hot(i, 4, on_value=tf.reduce_sum(TABLE), off_value=-1.5, axis=1),
        "axis 0",
    ),
    "Bucketize": (lambda x, i, j: RAW.Bucketize(input=x, boundaries=[-1, 2, 3]), "axis 0"),
    "DenseBincount": (
        lambda x, i, j: RAW.DenseBincount(input=i, size=3, weights=[0.0][:0]),
        "axis 0",
    ),
    "DenseBincount of weights": (
        lambda x, i, j: RAW.DenseBincount(input=i, size=4, weights=x[:, :2, 0]),
        "axis 0",
    ),
    "DenseBincount of weights alone": (
        lambda x, i, j: RAW.DenseBincount(
            input=tf.broadcast_to([0, 1], tf.shape(i)), size=3, weights=x[:, :2, 0]
        ),
        "axis 0",
    ),
    "DenseBincount of whether": (
        lambda x, i, j: RAW.DenseBincount(input=i, size=4, weights=[0.0][:0], binary_output=True),
        "axis 0",
    ),
}


@in_shares
@pytest.mark.parametrize("case", KEPT)
def test_entries_by_index_keep_the_cut(case, batches, layouts):
    function, cut = KEPT[case]
    report = check(function, *batches, replicas=[3], exact=True)
    assert f"sharded({cut})" in cuts(layouts, re.match(r"\w+", case)[0])
    assert not report.exchanged


GATHERED = {
    "GatherV2": lambda x, i, j: tf.gather(x, i % length(x)),
    "GatherV2 across": lambda x, i, j: tf.gather(x, j % 5, axis=1),
    "GatherNd": lambda x, i, j: tf.gather_nd(x, tf.stack([j % length(x), j % 5], 1)),
    "GatherNd across": lambda x, i, j: tf.gather_nd(turned(x), i[:, 1:]),
}


@in_shares
@pytest.mark.parametrize("case", GATHERED)
def test_of_parameters_and_indices_that_are_cut_one_is_gathered(case, batches):
    report = check(GATHERED[case], *batches, replicas=[3], exact=True)
    assert [each.operation for each in report.exchanged] == [re.match(r"\w+", case)[0]]


@pytest.mark.parametrize("length", [0, 1, 7])
def test_no_examples_take_no_rows_of_none(length):
    def taken(x):
        count = tf.shape(x)[0]
        places = tf.cast(x[:, 0] * 0, tf.int32)
        return tf.gather(x, tf.fill([count], count - 1)), tf.gather(tf.transpose(x), places, axis=1)

    check(taken, np.random.default_rng(0).normal(size=(length, 3)).astype("f"), whole=None)


def test_whole_indices_of_examples_need_all_of_them(layouts):
    x, i, _ = batch(7)
    check(lambda x: tf.gather(x, [3, 0]), x, whole=["GatherV2"])
    check(lambda x: tf.gather_nd(x, [[3, 0], [1, 2]]), x, whole=["GatherNd"])
    check(lambda i: tf.gather_nd(TABLES, tf.transpose(i[:3] % 3)), i, whole=None)


def test_a_batch_of_fixed_length_is_not_taken_for_the_axes_that_an_index_names():
    def function(i):
        places = tf.transpose(i)  # two, of three numbers
        return tf.gather_nd(TABLES, places), tf.gather_nd(tf.cumsum(TABLES), places * 0)

    i = np.array([[2, 0], [5, 3], [1, 0]], np.int32)
    partitioned = strategy(3).partitioned(
        function, input_signature=[tf.TensorSpec([3, 2], i.dtype)]
    )
    compare(function(tf.constant(i)), partitioned(i), "3 replicas", exact=True)


COUNTS = {
    "Bincount": lambda x, i, j: RAW.Bincount(arr=i, size=4, weights=[0.0][:0]),
    "Bincount of weights": lambda x, i, j: RAW.Bincount(arr=j, size=6, weights=x[:, 0, 0]),
    "DenseBincount": lambda x, i, j: RAW.DenseBincount(input=j, size=5, weights=[0][:0]),
    "DenseBincount of weights": lambda x, i, j: RAW.DenseBincount(
        input=j, size=6, weights=x[:, 1, 1]
    ),
    "DenseBincount turned": lambda x, i, j: RAW.DenseBincount(
        input=tf.transpose(i), size=4, weights=tf.transpose(x[:, :2, 0])
    ),
    "HistogramFixedWidth": lambda x, i, j: tf.histogram_fixed_width(x, [-2.0, 4.0], 9),
}


@in_shares
@pytest.mark.parametrize("case", COUNTS)
def test_counts_over_the_batch_are_summands(case, batches, layouts):
    report = check(COUNTS[case], *batches, replicas=[3])
    assert layouts[re.match(r"\w+", case)[0]] == {"partial"}
    assert [each.kind for each in report.exchanged] == ["sum"]


@sample(batch, whole=None)
def test_counts_of_any_number_of_axes_are_those_of_one_device(x, i, j):
    return [
        RAW.DenseBincount(input=of_any_axes(each), size=6, weights=[0.0][:0]) for each in (i, j)
    ]


def test_limits_of_a_histogram_may_be_a_batch():
    def function(x, limits):
        return tf.raw_ops.HistogramFixedWidth(values=x, value_range=limits, nbins=9)

    limits = np.array([-2.0, 4.0], np.float32)
    check(function, batch(7)[0], limits, replicas=[2, 3])


@sample(*batch(7), whole=["DenseBincount"])
def test_whether_any_example_has_a_value_is_computed_whole(x, i, j):
    return RAW.DenseBincount(input=j, size=6, weights=[0.0][:0], binary_output=True)


def test_counts_of_as_many_values_as_there_are_are_whole():
    check(lambda x, i, j: tf.math.bincount(j), *batch(7))


@in_shares
def test_whole_indices_of_a_summand_give_one_that_is_no_larger(batches, layouts):
    def function(x, i, j):
        s = tf.reduce_sum(x, 0)
        return tf.sin(tf.gather(s, [2, 1], axis=1)), tf.sin(tf.gather_nd(s, [[2, 1], [1, 1]]))

    report = check(function, *batches, replicas=[3])
    assert layouts["GatherV2"] | layouts["GatherNd"] == {"partial"}
    assert [(each.kind, each.tensors) for each in report.exchanged] == [("sum", 2)]


def test_many_indices_of_a_summand_wait_for_the_sum(layouts):
    check(lambda x, i, j: tf.gather(tf.reduce_sum(x, 0), [1] * 9), *batch(7), replicas=[3])
    check(lambda x, i, j: tf.gather(tf.reduce_sum(x, 0), j % 5), *batch(7), replicas=[3])
    assert cuts(layouts, "GatherV2") == {"replicated", "sharded(axis 0)"}


@sample(batch, sends=["sum"])
def test_gradients_of_a_table_are_summands(x, i, j):
    tables = tf.constant(TABLES)
    with tf.GradientTape() as tape:
        tape.watch(tables)
        taken = tf.gather(tables, i, axis=1), tf.gather_nd(tables, i % 3)
        total = tf.add_n([tf.reduce_sum(tf.sin(each)) for each in taken])
    return tape.gradient(total, tables)


@in_shares
def test_a_variable_is_looked_up_without_a_collective(batches, layouts):
    with strategy(3).scope():
        table = tf.Variable(TABLE)

    def function(x, i, j):
        def looked_up(indices):
            return RAW.ResourceGather(resource=table.handle, indices=indices, dtype=tf.float32)

        return (
            looked_up(i),
            looked_up(tf.transpose(i)),
            looked_up([3, 1]) * 2,
            RAW.ResourceGatherNd(resource=table.handle, indices=i % 3, dtype=tf.float32),
        )

    expected = function(*map(tf.constant, batches))
    partitioned = strategy(3).partitioned(function)
    found = partitioned(*batches)
    for one, many in zip(expected, found, strict=True):
        np.testing.assert_array_equal(many, one)
    assert cuts(layouts, "ResourceGather") == {
        "sharded(axis 0)",
        "sharded(axis 1)",
        "replicated",
    }
    assert cuts(layouts, "ResourceGatherNd") == {"sharded(axis 0)"}
    assert not partitioned.report.exchanged and not partitioned.report.whole


@in_shares
def test_indices_of_any_number_of_axes_are_looked_up_in_a_variable(batches):
    with strategy(3).scope():
        table = tf.Variable(TABLE)

    def function(x, i, j):
        return (
            RAW.ResourceGather(resource=table.handle, indices=of_any_axes(i), dtype=tf.float32),
            RAW.ResourceGatherNd(
                resource=table.handle, indices=of_any_axes(i % 3), dtype=tf.float32
            ),
        )

    expected = function(*map(tf.constant, batches))
    compare(expected, strategy(3).partitioned(function)(*batches), "3 replicas", exact=True)


def test_examples_that_are_the_numbers_of_an_index_into_a_variable_are_gathered():
    with strategy(3).scope():
        table = tf.Variable(TABLE)

    def function(i):
        return RAW.ResourceGatherNd(
            resource=table.handle, indices=tf.transpose(i), dtype=tf.float32
        )

    i = np.array([[3, 0, 5], [1, 2, 0]], np.int32)
    signature = [tf.TensorSpec([2, 3], i.dtype)]
    found = strategy(3).partitioned(function, input_signature=signature)(i)
    compare(function(tf.constant(i)), found, "3 replicas", exact=True)


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_of_a_variable_with_a_share_on_each_replica_the_whole_is_looked_up(aggregation):
    with strategy(3).scope():
        table = tf.Variable(
            TABLE,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation[aggregation],
            trainable=False,
        )

    def function(x, i, j):
        table.assign(TABLE + tf.reduce_sum(x))
        with tf.control_dependencies([table.read_value()]):
            few = tf.identity([[3, 1], [0, 2]])
        return [
            tf.sin(RAW.ResourceGather(resource=table.handle, indices=few, dtype=tf.float32)),
            RAW.ResourceGather(resource=table.handle, indices=i, dtype=tf.float32),
            RAW.ResourceGatherNd(resource=table.handle, indices=few, dtype=tf.float32),
        ]

    batches = batch(7)
    values = TABLE + batches[0].sum()
    found = strategy(3).partitioned(function)(*batches)
    few = np.array([[3, 1], [0, 2]])
    np.testing.assert_allclose(found[0], np.sin(values[few]), rtol=0, atol=1e-3)
    np.testing.assert_allclose(found[1], values[batches[1]], rtol=1e-5)
    np.testing.assert_allclose(found[2], values[tuple(few.T)], rtol=1e-5)


def test_rows_in_common_with_a_variable_are_looked_up_whole(layouts):
    table = RANDOM.normal(size=[7, 4]).astype(np.float32)
    with strategy(3).scope():
        variable = tf.Variable(table)

    def function(x, i, j):
        return RAW.ResourceGather(
            resource=variable.handle, indices=i, batch_dims=1, dtype=tf.float32
        )

    x, i, j = batch(7)
    found = strategy(3).partitioned(function)(x, i, j)
    np.testing.assert_array_equal(found, np.take_along_axis(table, i, 1))
    assert layouts["ResourceGather"] == {"replicated"}


@of_drawn_batches
def test_any_entries_are_those_of_one_device_wherever_the_batch_is(case):
    axis = case.choose(range(case.rank))
    common = case.choose(range(axis + 1))
    depth = case.choose(range(case.rank)) + 1
    size = case.shape[axis]
    new = case.choose([0, -1, case.rank])

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        numbers, all_numbers = (tf.cast(each, tf.int32) for each in (t, whole))
        few = tf.constant([[size - 1, 0], [0, size // 2]])
        rows, all_rows = (tf.reshape(each, [-1]) for each in (numbers, all_numbers))
        named = [size for at, size in enumerate(case.shape) if at < depth]
        places, all_places = (
            tf.stack([each // (at + 1) % size for at, size in enumerate(named)], -1)
            for each in (numbers, all_numbers)
        )
        found = [
            tf.gather(t, few, axis=axis),
            tf.gather(whole, numbers % size, axis=axis),
            tf.gather(t, all_numbers % size, axis=axis),
            tf.gather(t, numbers % size, axis=axis, batch_dims=common),
            tf.gather(t, all_numbers % size, axis=axis, batch_dims=common),
            tf.gather(whole, numbers % size, axis=axis, batch_dims=common),
            tf.gather_nd(t, [[each - 1 for each in named], [0] * depth]),
            tf.gather_nd(whole, places),
            tf.gather_nd(t, all_places),
            tf.one_hot(numbers % 5, 5, axis=new),
            RAW.Bucketize(input=t, boundaries=[4, 9, 17]),
            tf.histogram_fixed_width(t, [0.0, 25.0], 5),
            RAW.Bincount(arr=numbers, size=24, weights=[0.0][:0]),
            RAW.Bincount(arr=rows, size=24, weights=tf.reshape(whole, [-1])),
            RAW.Bincount(arr=all_rows % 24, size=24, weights=tf.reshape(t, [-1])),
            RAW.DenseBincount(input=rows, size=9, weights=[0][:0]),
            RAW.DenseBincount(input=all_rows % 9, size=9, weights=tf.reshape(t, [-1])),
            RAW.DenseBincount(input=rows, size=9, weights=[0][:0], binary_output=True),
        ]
        if case.rank == 2:
            for one, other in ((numbers, whole), (all_numbers % 9, t), (numbers, t)):
                found += [
                    RAW.DenseBincount(input=one, size=9, weights=other),
                    RAW.DenseBincount(input=one, size=9, weights=[0][:0], binary_output=True),
                ]
        s = tf.reduce_sum(t, case.axis, keepdims=True)
        return [*found, tf.gather_nd(s, [[0]]), tf.gather(s, [0], axis=axis % case.rank)]

    case.check(function, exact=True)
