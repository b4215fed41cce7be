"""Parts of the Keras adapter alone: no strategy, and NumPy for the other replicas."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from communication.replicas.stand_in import StandIn

from tfdp.keras.replica_step import ReplicaStep, StrategyState, Unseeded
from tfdp.keras.run import seeds, statistics


def step_of(replicas):
    """A step of the stand-in."""
    strategy = types.SimpleNamespace(adapter_state=StrategyState())
    return ReplicaStep(strategy, replicas, Unseeded(), None)


def test_what_replicas_wrote_becomes_the_mean_and_the_first_ones_count():
    mean = keras.Variable([2.0, 4.0], trainable=False)
    count = keras.Variable(5, dtype="int32", trainable=False)
    # The other wrote [10, 20] and 9.
    replicas = StandIn(0, [[[np.float32([5.0, 10.0]), np.int32([0])]]])
    step = step_of(replicas)
    step.note_written(mean)
    step.note_written(count)
    statistics.average_written(step)
    np.testing.assert_allclose(mean, [6.0, 12.0], rtol=1e-7)
    assert int(count) == 5
    np.testing.assert_array_equal(replicas.sent[0][0], [1.0, 2.0])
    assert replicas.within == ["identical_writes"] * len(replicas.within) != []
    assert not step.written


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_seeds_are_apart_by_knuths_constant_on_each_replica(dtype):
    dtype = tf.as_dtype(dtype)
    for rank in (0, 1, 2, 7, 1023):
        expected = rank * 2654435761 % 2 ** (8 * dtype.size - 1)
        found = seeds._offset(rank, dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array([expected, 0], dtype.as_numpy_dtype))
