"""Handles of ordering tokens and counters, captured through loops, conditionals and gradients."""

import tensorflow as tf

from tfdp.communication.engines import sequence

_MARK = "_tfdp_is_token"


def as_token(handle: tf.Tensor) -> tf.Tensor:
    """Marks a handle as one that orders collectives, and returns the handle."""
    setattr(handle, _MARK, True)
    return handle


def is_token(handle: tf.Tensor) -> bool:
    """Returns whether a graph that captures `handle` communicates."""
    return hasattr(handle, _MARK)


def captured(handle: tf.Tensor) -> tf.Tensor:
    """Returns `handle`, captured by every graph from the replica's own to the current one.

    The gradient of a conditional or a loop can only use what the forward graph has captured. The
    graphs around the replica's own are left out: another trace of them may call the same function.
    Where no replica's graph is built there is no collective, and TensorFlow captures by itself.
    """
    own = sequence.own_graph()
    if own is None:
        return handle
    graphs = []
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        graphs.append(getattr(graph, "_forward_graph", None) or graph)
        if graph is own:
            break
        graph = graph.outer_graph
    for graph in reversed(graphs):
        handle = graph.capture(handle)
    return handle
