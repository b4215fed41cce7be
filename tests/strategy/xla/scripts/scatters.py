"""Adds rows to a table by indices of 64 bits, on devices that have unevenly many of the rows.

XLA aborts the process of what it cannot partition. Prints how far the table is from NumPy's.
"""

import jax
import numpy as np
import tensorflow as tf

import tfdp

IDS = np.array([3, -1, 5, 3, 19, 2**32 + 3, 20, 7], "int64")  # some lie outside, and add nothing
ROWS = np.arange(24, dtype="float32").reshape(8, 3)

strategy = tfdp.XLAStrategy(jax.devices()[:4])


@strategy.partitioned
def table(ids, rows):
    return tf.math.unsorted_segment_sum(rows[:-1], ids[:-1], 20)


expected = np.zeros([20, 3], "float32")
for index, row in zip(IDS[:-1], ROWS[:-1], strict=True):
    if 0 <= index < 20:
        expected[index] += row
print(np.abs(table(IDS, ROWS) - expected).max())
