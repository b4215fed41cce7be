"""How values travel between processes outside of graphs."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.cluster.board import Post
from tfdp.collectives import eager


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "float16"])
def test_tensors_and_slices_come_back_from_bytes(dtype):
    tensor = tf.cast(tf.reshape(tf.range(6), [2, 3]), dtype)
    slices = tf.IndexedSlices(tensor, tf.constant([4, 1]), [9, 3])
    parts = [eager._components(value) for value in (tensor, slices, tensor[:0])]
    described = [[eager._described(array) for array in arrays] for arrays in parts]
    payload = b"".join(array.tobytes() for arrays in parts for array in arrays)
    received = eager._unpacked(Post(["sum", described], payload), [True] * 3)
    for sent, came in zip(parts, received, strict=True):
        for a, b in zip(sent, came, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_only_what_has_the_same_shape_may_be_summed():
    one = [[["float32", [2, 3]]]]
    assert eager._alike_for_sum(one, [[["float32", [2, 3]]]])
    assert not eager._alike_for_sum(one, [[["float32", [3, 3]]]])
    assert not eager._alike_for_sum(one, [[["float64", [2, 3]]]])
    assert not eager._alike_for_sum(one, one + one)


def test_slices_may_have_different_numbers_of_rows_of_one_width():
    def rows(count, width):
        return [[["float32", [count, width]], ["int64", [count]]]]

    assert eager._alike_for_sum(rows(2, 3), rows(5, 3))
    assert not eager._alike_for_sum(rows(2, 3), rows(2, 4))
    assert not eager._alike_for_sum(rows(2, 3), [[["float32", [2, 3]]]])
