"""IndexedSlices over replicas: merged, and sent dense where that is less. NumPy is the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdp import topology
from tfdp.communication.collectives import Reducer, indexed_slices
from tfdp.communication.engines import TensorFlowEngine


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 3))
def test_merged_rows_come_once_and_sum_to_the_same(rows, width):
    values = np.arange(len(rows) * width, dtype="float64").reshape(len(rows), width)
    before = tf.IndexedSlices(values, np.array(rows, "int64"), tf.constant([6, width]))
    after = indexed_slices.merged(before)
    assert after.indices.numpy().tolist() == list(dict.fromkeys(rows))
    expected = np.zeros((6, width))
    np.add.at(expected, rows, values)
    np.testing.assert_array_equal(tf.convert_to_tensor(after), expected)


@pytest.fixture
def all_reduce(devices, on_replicas):
    """Returns a function that sums the ranks' rows of ones over a table of `size` rows."""

    def run(rows_of_ranks, size, width=3, dtype="float32", rule=None, known=True):
        ranks = len(rows_of_ranks)
        reducer = Reducer(
            TensorFlowEngine(devices[:ranks]), rule or topology.Native(), [0] * ranks, 2**20
        )
        unknown = tf.Variable([size, width])

        def one(rank):
            rows = np.array(rows_of_ranks[rank], "int32")
            value = tf.IndexedSlices(
                tf.ones([len(rows), width], dtype) * tf.cast(rank + 1, dtype),
                tf.constant(rows),
                tf.constant([size, width]) if known else unknown.read_value(),
            )
            return reducer.all_reduce([value], rank, merge_rows=True)[0]

        results = on_replicas(ranks, one)()
        expected = np.zeros((size, width))
        for rank, rows in enumerate(rows_of_ranks):
            np.add.at(expected, np.array(rows, int), rank + 1.0)
        for result in results:
            np.testing.assert_array_equal(
                tf.cast(tf.convert_to_tensor(result), "float64"), expected
            )
            assert result.values.dtype == dtype
            assert result.indices.dtype == tf.int32
            assert result.values.numpy().tobytes() == results[0].values.numpy().tobytes()
        return results[0].indices.numpy().tolist()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("rule", [topology.Native(), topology.Ring(), topology.Direct()], ids=str)
def test_few_rows_travel_as_rows_each_rank_s_once(rule, all_reduce):
    assert all_reduce([[7, 2, 7, 7], [], [2]], size=100, rule=rule) == [7, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [topology.Native(), topology.Ring(), topology.Direct()], ids=str)
def test_many_rows_travel_as_the_whole_table(rule, all_reduce):
    assert all_reduce([[3, 1, 0], [0], [2, 3]], size=5, rule=rule) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_repeated_rows_do_not_make_it_many(all_reduce):
    assert all_reduce([[9] * 500, [9] * 400], size=50) == [9, 9]


def test_a_table_of_unknown_size_travels_as_rows(all_reduce):
    assert all_reduce([[3, 1, 0, 4], [0]], size=5, known=False) == [3, 1, 0, 4, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [5, 500])
def test_every_floating_dtype(dtype, size, all_reduce):
    all_reduce([[3, 1, 0, 4], [0, 3]], size, dtype=dtype)
