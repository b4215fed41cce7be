"""Fixtures that run replica functions without a strategy."""

import pytest
import tensorflow as tf

from tfdp.communication.engines import Sequences

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(4)]


@pytest.fixture
def devices():
    """The full names of the four CPU devices."""
    return DEVICES


@pytest.fixture
def on_replicas():
    """Returns a function that traces `fn(rank)` for each rank and returns what all of them give."""

    def step(count, fn):
        @tf.function(autograph=False)
        def run():
            sequences = Sequences()
            results = []
            for rank in range(count):
                with tf.device(DEVICES[rank]), sequences.replica(rank):
                    results.append(fn(rank))
            sequences.check()
            return results

        return run

    return step


@pytest.fixture
def collectives_in():
    """Counts the collective ops of a traced step, by their type."""

    def count(step):
        graph = step.get_concrete_function().graph.as_graph_def()
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        ops = [node.op for nodes in bodies for node in nodes if node.op.startswith("Collective")]
        return {op: ops.count(op) for op in set(ops)}

    return count
