"""Who says that it is replicas, or processes, has what the protocols ask for."""

import inspect

import harness
import numpy as np
import pytest
import tensorflow as tf
from communication.replicas.stand_in import StandIn

import tfdp
from tfdp.communication.collectives import ClusterProcesses
from tfdp.communication.homes import RanksApart
from tfdp.communication.replicas import (
    OneProcess,
    ProcessGroup,
    Replicas,
    processes_of,
    replicas_of,
)
from tfdp.strategy.strategy_replicas import StrategyReplicas


def asked_by(protocol):
    """The names of a protocol's methods and properties."""
    return {name for name in vars(protocol) if not name.startswith("_")}


def parameters(owner, name):
    """The names and defaults of a method's parameters; None of a property or an attribute."""
    method = inspect.getattr_static(owner, name, None)
    method = method.__func__ if isinstance(method, staticmethod) else method
    if not inspect.isfunction(method):
        return None
    signature = inspect.signature(method)
    return [(p.name, p.default) for p in signature.parameters.values() if p.name != "self"]


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [
        (Replicas, StrategyReplicas),
        (Replicas, StandIn),
        (ProcessGroup, OneProcess),
        (ProcessGroup, ClusterProcesses),
        (ProcessGroup, RanksApart),
    ],
    ids=lambda cls: cls.__name__,
)
def test_an_implementation_takes_what_its_protocol_says(protocol, implementation):
    for name in asked_by(protocol):
        if parameters(protocol, name) is not None:
            assert parameters(implementation, name) == parameters(protocol, name), name


def test_a_strategy_of_one_process_has_all_that_its_protocols_ask_for():
    replicas = replicas_of(harness.strategy(2))
    for name in asked_by(Replicas) - {"rank"}:  # which is a replica's
        assert hasattr(replicas, name), name
    for name in asked_by(ProcessGroup) | {"error", "settings"}:
        assert hasattr(replicas.processes, name), name


def test_only_a_strategy_of_tfdp_has_replicas():
    assert replicas_of(None) is None
    assert replicas_of(tf.distribute.get_strategy()) is None
    assert replicas_of(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])) is None
    assert processes_of(tf.distribute.get_strategy()).world_size == 1
    assert replicas_of(tfdp.DataParallelStrategy(["CPU:0"])).num_replicas == 1


@pytest.mark.parametrize("in_graph", [True, False])
def test_replicas_know_their_number_while_they_are_traced(in_graph):
    strategy = harness.strategy(3)
    replicas = replicas_of(strategy)

    def run():
        return strategy.run(lambda: tf.constant(replicas.rank))

    numbers = (tf.function(run) if in_graph else run)().values
    assert [int(number) for number in numbers] == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("in_graph", [True, False])
def test_what_replicas_do_together(in_graph):
    strategy = harness.strategy(2)
    replicas = replicas_of(strategy)

    def replica():
        own = replicas.rank + tf.constant([1.0, 2.0])
        (doubled,) = replicas.sum_without_gradient([2 * own])
        (total,) = replicas.sum([own])
        return total, doubled, replicas.broadcast_from_first(own, own.dtype), own

    def run():
        return strategy.run(replica)

    total, doubled, first, own = (tf.function(run) if in_graph else run)()
    for rank in range(2):
        np.testing.assert_array_equal(total.values[rank], [3, 5])
        np.testing.assert_array_equal(doubled.values[rank], [6, 10])
        np.testing.assert_array_equal(first.values[rank], [1, 2])
    np.testing.assert_array_equal(replicas.gather_rows(own), [1, 2, 2, 3])
