"""Quotients of a table's rows in programs of fixed sizes are those of the whole table."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp import keras as tfdp_keras
from tfdp.communication.replicas import one_device

tfdp_keras.install()

NAN = np.nan
TABLES = {
    "no zeros": [[1.0, 2.0], [4.0, 8.0], [3.0, 3.0], [5.0, 5.0]],
    "zeros of rows that are not divided": [[1.0, 2.0], [0.0, 8.0], [3.0, 3.0], [NAN, 5.0]],
    "zeros of rows that are": [[0.0, 2.0], [4.0, 8.0], [0.0, 3.0], [5.0, 5.0]],
}


def quotient(table, rows=True):
    values, indices = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([2, 0, 2])
    slices = tf.IndexedSlices(values, indices, tf.constant([4, 2]))
    return keras.ops.divide(slices if rows else tf.convert_to_tensor(slices), table)


@pytest.mark.parametrize("name", TABLES)
def test_the_numbers_are_those_of_the_whole(name):
    table = tf.constant(TABLES[name])
    expected = quotient(table, rows=False)
    with one_device.traced(sizes_are_fixed=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(quotient(table)), expected)


def test_the_number_of_rows_is_known_before_a_run():
    @tf.function(input_signature=[tf.TensorSpec([4, 2])])
    def rows(table):
        return quotient(table).values

    assert rows.get_concrete_function().structured_outputs.shape[0] is None
    with one_device.traced(sizes_are_fixed=True):
        assert tf.function(rows.python_function, input_signature=rows.input_signature)(
            tf.ones([4, 2])
        ).shape == (7, 2)


def test_a_number_divides_rows_alone():
    with one_device.traced(sizes_are_fixed=True):
        assert quotient(tf.constant(2.0)).values.shape == (3, 2)
