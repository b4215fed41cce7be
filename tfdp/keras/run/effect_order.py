"""The order of side effects in `strategy.run`, in which no replica waits for ever.

In one graph TensorFlow runs operations with side effects in the order in which they were traced, if
they have no resource, such as printing or an assertion, or the same one: a table, an iterator, a
variable made outside of the scope. So all of one replica's come before those of the next. If the
first replica has one behind a sum over replicas, and the second has one before that sum, the second
replica cannot reach the sum, and the first waits for it there for ever.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.base.hooks import put
from tfdp.communication.engines.sequence import is_token
from tfdp.keras._tensorflow import (
    add_control_input,
    control_flow_context,
    get_read_write_resource_inputs,
    op_is_stateful,
)

_TOGETHER = (
    "What replicas share must be written where they do not communicate, for they do it one after "
    "the other, but %r writes something of the kind, such as a variable made outside of the scope "
    "or a table (TensorFlow takes a lookup for a write), in a branch, a loop or a function that "
    "also sums over replicas. Make the variable in `strategy.scope()`, take the lookup out of "
    "there, or take `@tf.function` off."
)


class Effects:
    """The side effects of all replicas of one call of `strategy.run` that are traced in a graph."""

    def __init__(self) -> None:
        self._graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._dependencies = getattr(self._graph, "experimental_acd_manager", None)
        self._of_replicas: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def of_replica(self) -> Iterator[None]:
        """Orders operations without a resource that are traced within among themselves alone.

        What is traced in a function or a branch within keeps the order that it has there.
        """
        if self._dependencies is None:
            yield
            return
        known = len(self._graph.get_operations())
        yield
        last = None
        operations = self._graph.get_operations()
        for operation in operations[known:]:
            if not _is_ordered(operation):
                continue
            if last is not None:
                add_control_input(operation, last)
            self._dependencies.run_independently(operation)
            last = operation
        self._of_replicas.append((known, len(operations)))

    def arrange(self) -> None:
        """Orders uses of the same resource by the number of sums before them, then by replica.

        In this order the next sum is reached by all replicas before any of them must go beyond it.

        Raises:
          RuntimeError: Several replicas write the same resource in a branch, a loop or a function
            in which they also communicate.
        """
        starts = [start for start, _ in self._of_replicas]
        stops = [stop for _, stop in self._of_replicas]
        if len(starts) < 2 or any(a > b for a, b in zip(stops, starts[1:], strict=False)):
            return  # With `merge_call` replicas are traced in turns, so their ranges overlap.
        operations = self._graph.get_operations()
        shared = self._written_by_one_and_used_by_others(operations)
        if not shared:
            return
        tokens = {id(inner) for outer, inner in self._graph.captures if is_token(outer)}
        rounds: dict[Any, int] = {}
        later = False
        for start, stop in self._of_replicas:
            sums = 0
            for operation in operations[start:stop]:
                used = {id(each) for each in operation.inputs if each.dtype == tf.resource}
                communicates = not used.isdisjoint(tokens)
                rounds[operation] = 2 * sums + communicates
                sums += communicates
                if used.isdisjoint(shared):
                    continue
                later |= rounds[operation] > 0
                if communicates and _writes(operation, shared):
                    raise RuntimeError(_TOGETHER % operation.name)
        if later:
            own = slice(starts[0], stops[-1])
            _reorder(self._graph, own, sorted(operations[own], key=lambda op: rounds.get(op, 0)))

    def _written_by_one_and_used_by_others(self, operations: list[Any]) -> set[int]:
        """Returns the ids of the resources that one replica writes and another uses."""
        replica_of: dict[Any, int] = {}
        for index, (start, stop) in enumerate(self._of_replicas):
            replica_of |= dict.fromkeys(operations[start:stop], index)
        before = operations[: self._of_replicas[0][0]]
        handles = [inner for _, inner in self._graph.captures]
        handles += [output for operation in before for output in operation.outputs]
        found = set()
        for handle in handles:
            users = handle.consumers() if handle.dtype == tf.resource else ()
            replicas = {replica_of[operation] for operation in users if operation in replica_of}
            if len(replicas) > 1 and any(_writes(operation, {id(handle)}) for operation in users):
                found.add(id(handle))
        return found


def _writes(operation: Any, resources: set[int]) -> bool:
    """Returns whether an operation may write one of the resources, which are given by id."""
    _, written = get_read_write_resource_inputs(operation)
    return any(id(each) in resources for each in written)


def _reorder(graph: Any, where: slice, order: list[Any]) -> None:
    """Changes the order that `get_operations` tells, which TensorFlow takes for the program's."""

    def get_operations(original: Callable[[], list[Any]]) -> list[Any]:
        """Returns operations in the order of the program, not in that of the replicas' traces."""
        operations = original()
        operations[where] = order
        return operations

    put(graph, "get_operations", get_operations)


def _is_ordered(operation: Any) -> bool:
    """Returns whether TensorFlow orders an operation by the time of its tracing alone."""
    return (
        op_is_stateful(operation)
        and control_flow_context(operation) is None
        and all(value.dtype != tf.resource for value in operation.inputs)
        and "_independent_side_effects" not in operation.node_def.attr
    )
