"""TensorFlow's own strategy as an oracle, and running a function eagerly or in a graph."""

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="session")
def mirrored():
    """Returns a function that makes a MirroredStrategy over the first CPU devices.

    Two of them in one process would share the keys of their collectives; TensorFlow's tests move
    this base for the same reason.
    """

    def make(replicas):
        tf.distribute.MirroredStrategy._collective_key_base += 1000
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])

    return make


@pytest.fixture(params=["eager", "graph"])
def execute(request):
    """Calls a function without arguments, eagerly or inside a tf.function."""
    return (lambda fn: fn()) if request.param == "eager" else (lambda fn: tf.function(fn)())


@pytest.fixture
def values():
    """The replicas' values of a distributed nest: a list of NumPy arrays for each leaf."""

    def of(distributed):
        return tf.nest.map_structure(
            lambda leaf: [np.asarray(v) for v in getattr(leaf, "values", (leaf,))], distributed
        )

    return of


@pytest.fixture
def rank():
    """The calling replica's rank, as a Python int."""

    def of_replica():
        return int(
            tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        )

    return of_replica
