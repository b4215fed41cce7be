"""Side effects, such as printing or an assertion, keep their order on each replica, and no other.

In one graph TensorFlow runs operations with side effects one after the other, as they were traced,
and so those of one replica after all of another's. Where one stands behind a sum over replicas, and
another before it, each replica would wait for the other for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter._tensorflow import op_is_stateful


@contextlib.contextmanager
def in_replica_order() -> Iterator[None]:
    """Orders the side effects that are traced within after each other alone.

    What is traced in a function or a branch inside of it keeps its own order there.
    """
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is None:
        yield
        return
    known = len(graph.get_operations())
    yield
    last = None
    for operation in graph.get_operations()[known:]:
        if not _is_ordered(operation):
            continue
        if last is not None:
            operation._add_control_input(last)
        dependencies.run_independently(operation)
        last = operation


def _is_ordered(operation: Any) -> bool:
    """Whether TensorFlow orders it by nothing but the time at which it was traced."""
    return (
        op_is_stateful(operation)
        and operation._control_flow_context is None
        and all(value.dtype != tf.resource for value in operation.inputs)
        and "_independent_side_effects" not in operation.node_def.attr
    )
