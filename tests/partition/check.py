"""Runs a function on one device and, partitioned, on replicas, and compares all that it gives."""

import functools

import harness
import numpy as np
import tensorflow as tf
from replica_counts import FAST

import tfdp

TOLERANCE = 1e-5  # of the largest number

# Three replicas share nearly every batch unevenly; `make test-all` shows an even number, too.
REPLICAS = (3,) if FAST else (2, 3)


@functools.cache
def strategy(replicas):
    """The strategy of so many replicas in this process."""
    assert replicas <= harness.LOGICAL_DEVICES
    return tfdp.DataParallelStrategy([f"CPU:{index}" for index in range(replicas)])


def check(function, *batches, replicas=REPLICAS, whole=(), exact=False, tolerance=TOLERANCE):
    """Asserts that replicas give what one device gives, and returns the last program's report.

    Args:
      function: The function, of global batches; it makes no variables.
      batches: Its arguments: arrays or tensors, each of which is cut along its first axis.
      replicas: The numbers of replicas.
      whole: The types of operations that are computed whole; None: whichever they are.
      exact: Whether all bits must be the same.
      tolerance: The largest difference, in parts of the largest number.
    """
    expected = tf.function(function, autograph=False)(*map(tf.convert_to_tensor, batches))
    for count in replicas:
        partitioned = strategy(count).partitioned(function)
        found = partitioned(*batches)
        compare(expected, found, f"{count} replicas", exact, tolerance)
        if whole is not None:
            computed = {each.operation for each in partitioned.report.whole}
            assert computed == set(whole), [*map(str, partitioned.report.whole)]
    return partitioned.report


def compare(expected, found, where, exact=False, tolerance=TOLERANCE):
    """Asserts that two nests hold the same numbers."""
    tf.nest.assert_same_structure(expected, found, expand_composites=True)
    pairs = zip(
        tf.nest.flatten(expected, expand_composites=True),
        tf.nest.flatten(found, expand_composites=True),
        strict=True,
    )
    for index, (one, many) in enumerate(pairs):
        said = f"output {index}, {where}"
        a, b = np.asarray(one), np.asarray(many)
        assert a.dtype == b.dtype and a.shape == b.shape, f"{said}: {a.shape} {b.shape}"
        if exact or a.dtype.kind not in "fc":
            np.testing.assert_array_equal(b, a, said)
        else:
            scale = np.max(np.abs(a), initial=0, where=np.isfinite(a)) or 1
            np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * scale, err_msg=said)
