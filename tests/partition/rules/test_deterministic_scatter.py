"""Sums that every replica computes for itself have one order, where kernels add in any.

Kernels of CPUs have one order in any case: what is written for GPUs is run on CPUs here.
"""

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy

from tfdp.strategy.programs import reduction_order

# What adds up entries as they come.
ADDING = {
    "BiasAddGrad",
    "ResourceScatterAdd",
    "ResourceScatterNdAdd",
    "ResourceScatterNdSub",
    "ResourceScatterSub",
    "ScatterNd",
    "SegmentMean",
    "SegmentSum",
    "TensorScatterAdd",
    "TensorScatterSub",
    "UnsortedSegmentSum",
}


@pytest.fixture
def in_any_order(monkeypatch):
    """Has programs take the devices for ones that add as it comes; undone, strategies are new."""
    strategy.cache_clear()
    monkeypatch.setattr(reduction_order, "is_any", lambda devices: True)
    yield
    strategy.cache_clear()


def operations(program):
    """The types of operations on which something depends: TensorFlow leaves out the others."""
    found = set()
    for function in program.functions:
        nodes = {node.name: node for node in function.node_def}
        stateful = [node.name for node in nodes.values() if "Variable" in node.op]
        waiting = [*function.ret.values(), *function.control_ret.values(), *stateful]
        seen = set()
        while waiting:
            name = waiting.pop().lstrip("^").partition(":")[0]
            if name in nodes and name not in seen:
                seen.add(name)
                waiting += nodes[name].input
        found |= {nodes[name].op for name in seen}
    return found


def adding(partitioned):
    return operations(partitioned._latest.program) & ADDING


def test_rows_are_added_to_every_copy_of_a_table_in_one_order(in_any_order):
    with strategy(3).scope():
        table = tf.Variable(tf.ones([5, 2]))

    @strategy(3).partitioned
    def step(rows, places):
        slices = tf.IndexedSlices(rows, places)
        table.scatter_sub(slices)
        table.scatter_add(tf.IndexedSlices(rows[:, :1] * [1.0, 3.0], places))
        return tf.constant(0)

    rows = np.random.default_rng(0).normal(size=(7, 2)).astype("f")
    places = np.array([4, 0, 4, 1, 4, 0, 3])
    step(rows, places)
    expected = np.ones([5, 2])
    np.subtract.at(expected, places, rows.astype("d"))
    np.add.at(expected, places, rows[:, :1].astype("d") * [1, 3])
    for copy in table.values:
        np.testing.assert_allclose(copy, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(copy, table.values[0])
    assert not adding(step)


@pytest.mark.parametrize("type_", ["ResourceScatterNdAdd", "ResourceScatterNdSub"])
def test_entries_of_a_variable_are_added_in_one_order(type_, in_any_order):
    with strategy(3).scope():
        table = tf.Variable(tf.ones([3, 4, 2]))

    @strategy(3).partitioned
    def step(rows, places):
        places = tf.stack([places // 4, places % 4], 1)
        getattr(tf.raw_ops, type_)(ref=table.handle, indices=places, updates=rows)
        return tf.constant(0)

    rows = np.random.default_rng(0).normal(size=(7, 2)).astype("f")
    places = np.array([11, 3, 4, 11, 4, 0, 11])
    step(rows, places)
    expected, sign = np.ones([3, 4, 2]), 1 if type_.endswith("Add") else -1
    np.add.at(expected, (places // 4, places % 4), sign * rows.astype("d"))
    for copy in table.values:
        np.testing.assert_allclose(copy, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(copy, table.values[0])
    assert not adding(step)


def of_segments(x, places):
    return tf.math.unsorted_segment_sum(x, places, tf.shape(x)[0])


def of_places_of_two_axes(x, places):
    # Of pairs of places that all replicas have: each adds up all examples.
    total = tf.reduce_sum(x, 0)
    pairs = tf.constant([[[0, 1], [1, 1]], [[0, 1], [0, 0]]])
    updates = tf.reshape(total[:4], [2, 2, 1]) * [[[1.0, 2.0, 3.0]]]
    return tf.scatter_nd(pairs, updates, [2, 3, 3]), tf.cast(places, tf.float32)


def added_to_rows(x, places):
    return tf.tensor_scatter_nd_add(x, places[::-1, tf.newaxis] % tf.shape(x, tf.int64)[0], x)


def subtracted_from_rows(x, places):
    return tf.tensor_scatter_nd_sub(x, places[::-1, tf.newaxis] % tf.shape(x, tf.int64)[0], x)


def scattered_to_rows(x, places):
    return tf.scatter_nd(
        places[::-1, tf.newaxis] % tf.shape(x, tf.int64)[0], x, tf.shape(x, tf.int64)
    )


def sorted_segments(x, places):
    places = tf.sort(places)
    return tf.math.segment_sum(x, places), tf.math.segment_mean(x, places)


def segments_of_two_axes(x, places):
    pairs = tf.stack([places[::-1], places - 2], 1)
    twice = tf.stack([x, 2 * x], 1)
    return tf.math.unsorted_segment_sum(twice, pairs, tf.shape(x)[0])


def of_biases(x, places):
    images = tf.reshape(tf.sort(x, axis=0), [-1, 2, 2, 1]) * [1.0, 2.0, 3.0]
    half = tf.cast(images, tf.float16)
    by_channel = tf.raw_ops.BiasAddGrad(out_backprop=images, data_format="NCHW")
    return by_channel, *(tf.raw_ops.BiasAddGrad(out_backprop=each) for each in (images, half))


WHOLE = [
    of_biases,
    of_segments,
    of_places_of_two_axes,
    added_to_rows,
    subtracted_from_rows,
    scattered_to_rows,
    segments_of_two_axes,
    sorted_segments,
]


@pytest.mark.parametrize("function", WHOLE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("length", [7, 2, 0])
def test_sums_of_whole_tensors_have_one_order(function, length, in_any_order):
    random = np.random.default_rng(1)
    x = random.normal(size=(length, 4)).astype("f")
    places = random.integers(0, 3, size=length)
    check(function, x, places, whole=None)
    partitioned = strategy(3).partitioned(function)
    partitioned(x, places)
    assert not adding(partitioned)


def test_rows_whose_places_differ_are_added_as_they_are(in_any_order):
    with strategy(3).scope():
        table = tf.Variable(tf.zeros([9, 2]))

    @strategy(3).partitioned
    def step(x):
        found, which = tf.unique(tf.cast(x[:, 0], tf.int64))
        summed = tf.math.unsorted_segment_sum(x, which, tf.shape(found)[0])
        table.scatter_add(tf.IndexedSlices(summed, found))
        table.scatter_add(tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 1])))
        return tf.constant(0)

    step(np.array([[4, 1], [2, 1], [4, 1]], "f"))
    expected = np.zeros([9, 2])
    expected[[4, 2, 3, 1]] = [[8, 2], [2, 1], [1, 1], [1, 1]]
    for copy in table.values:
        np.testing.assert_array_equal(copy, expected)
    assert "ResourceScatterAdd" in adding(step) and "TopKV2" not in operations(step._latest.program)
