"""TensorFlow's own strategy as an oracle, and the ways in which replicas can be run."""

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


def ways(strategy, fn):
    """The same replica function run eagerly, in a graph, as a tf.function, and nested in one."""

    def nested(*args):
        inner = tf.function(fn)
        inner(*args)
        return inner(*args)

    return {
        "eager": lambda *args: strategy.run(fn, args=args),
        "graph": tf.function(lambda *args: strategy.run(fn, args=args)),
        "function": lambda *args: strategy.run(decorated, args=args),
        "nested": tf.function(lambda *args: strategy.run(nested, args=args)),
    } | {"_": (decorated := tf.function(fn))}


OTHER_WAYS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("function", "nested")]


@pytest.fixture(params=["eager", "graph", *OTHER_WAYS])
def way(request):
    """Returns a function (strategy, replica function, arguments) -> result, in one of four ways."""
    return lambda strategy, fn, *args: ways(strategy, fn)[request.param](*args)


@pytest.fixture(params=["graph", *OTHER_WAYS])
def way_in_graph(request):
    """As `way`, without eager execution."""
    return lambda strategy, fn, *args: ways(strategy, fn)[request.param](*args)
