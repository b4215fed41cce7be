"""What a step does with counts, places and flags it does on the host, where replicas are GPUs.

A GPU that is asked for a flag first finishes all that it was given, and the host can queue nothing
meanwhile. Here the first CPU is the host, and the others stand for GPUs.
"""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.partition.finish import registration
from tfdp.strategy.programs import replica_rows

# What compares, counts and decides.
DECIDING = {
    "All",
    "Any",
    "Assert",
    "AssignVariableOp",
    "Equal",
    "GatherV2",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "ReadVariableOp",
    "StridedSlice",
    "Sum",
}


@pytest.fixture
def host(monkeypatch):
    """Takes the first CPU for the others' host."""

    def host_of(device):
        return tf.DeviceSpec.from_string(device).replace(device_index=0).to_string()

    monkeypatch.setattr(registration, "host_of", host_of)
    monkeypatch.setattr(replica_rows, "host_of", host_of)


def graphs_within(graph):
    """A graph and those of the functions in it that were traced; not the replicas' programs."""
    yield graph.as_graph_def().node
    for function in graph.as_graph_def().library.function:
        yield function.node_def


def is_on_host(node):
    return tf.DeviceSpec.from_string(node.device or "").device_index == 0


def decides(node):
    """Whether it decides. To slice a shape, which is int32, a GPU's kernel uses the host."""
    of_shape = node.op == "StridedSlice" and node.attr["T"].type != tf.int64.as_datatype_enum
    return node.op in DECIDING and not of_shape


def elsewhere(graph):
    return {
        f"{node.op} {node.name}"
        for nodes in graphs_within(graph)
        for node in nodes
        if decides(node) and not is_on_host(node)
    }


@pytest.mark.parametrize("length", [8, 7], ids=["even", "uneven"])
def test_a_step_decides_on_the_host(length, host, monkeypatch):
    harness.start_over()
    strategy = tfdp.DataParallelStrategy(["CPU:1", "CPU:2"])
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(1)]
        )
    step = strategy.partitioned(lambda batch: tf.reduce_sum(model(batch[0], training=True)))
    batches = tf.data.Dataset.from_tensor_slices((np.ones([16, 4], "f"), np.ones(16, "f")))
    batches = strategy.experimental_distribute_dataset(batches.batch(length))

    @tf.function
    def next_step(iterator):
        return step.on_shares(next(iterator))

    graph = next_step.get_concrete_function(iter(batches).shards).graph
    assert not elsewhere(graph)


def test_a_counter_is_advanced_on_the_host(host):
    strategy = tfdp.DataParallelStrategy(["CPU:1", "CPU:2"])
    run = strategy.partitioned(
        lambda x: tf.random.stateless_uniform([tf.shape(x)[0], 20], tf.cast(x[0, :2], tf.int32))
    )
    x = np.arange(14, dtype="float32").reshape(7, 2)
    expected = tf.random.stateless_uniform([7, 20], [0, 1])
    np.testing.assert_array_equal(run(tf.constant(x)), expected)
    registered = run._latest._registered
    definition = registration.context().get_function_def(registered.names(inlined=True)[0])
    words = [node for node in definition.node_def if node.op == "Bitcast"]
    assert words and all(map(is_on_host, words))
