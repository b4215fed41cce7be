"""The variables, tables and constants that a traced program captures, as each replica has them."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfdp.base.recording import copies_of
from tfdp.partition import LOCAL, PARTIAL, REPLICATED, Layout, layout_of_parts
from tfdp.strategy._tensorflow import (
    DistributedVariable,
    SyncOnReadVariable,
)
from tfdp.strategy._tensorflow_programs import (
    container_of_copy,
    handle_data,
)
from tfdp.strategy.sharded_variable import ShardedVariable


@dataclasses.dataclass
class Captured:
    """The tensors that a program captures.

    Attributes:
      of_replicas: Of each captured tensor that of each local replica.
      states: How the copies of each variable make its value, see `tfdp.partition.rules.variables`;
        for other tensors replicated.
      outside: Tensors, and variables, that are no strategy's: each process has its own.
      refreshed: Variables from outside of the strategy's scope, with their copies on the other
        local replicas, which are written before each call.
    """

    of_replicas: list[list[tf.Tensor]]
    states: list[Layout]
    outside: list[tf.Tensor]
    refreshed: list[tuple[tf.Tensor, list[tf.Variable]]]


def captured_by(tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> Captured:
    """Finds the copies of what a traced program captures.

    Args:
      tensors: What it captures, in order.
      devices: The devices of the local replicas.
    """
    found = Captured([], [], [], [])
    for tensor in tensors:
        reference = getattr(tensor, container_of_copy, None)
        container = reference() if callable(reference) else None
        if isinstance(container, DistributedVariable):
            found.of_replicas.append([copy.handle for copy in container.values])
            found.states.append(_state(container))
            continue
        found.states.append(REPLICATED)
        buffers = copies_of(tensor)
        if buffers is not None:
            found.of_replicas.append(buffers)
            continue
        if _is_variable(tensor) or tensor.dtype not in (tf.resource, tf.variant):
            found.outside.append(tensor)
        copies = _copies(tensor, devices[1:]) if _is_variable(tensor) else None
        if not copies:
            found.of_replicas.append(_for_each(tensor, len(devices)))
            continue
        found.of_replicas.append([tensor, *(copy.handle for copy in copies)])
        found.refreshed.append((tensor, copies))
    return found


def value_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the value of one of `Captured.outside`."""
    if tensor.dtype != tf.resource:
        return tensor
    return tf.raw_ops.ReadVariableOp(resource=tensor, dtype=_kind(tensor)[0])


def _kind(handle: tf.Tensor) -> tuple[tf.DType, tf.TensorShape]:
    (kind,) = handle_data(handle).shape_and_type[:1]
    return tf.as_dtype(kind.dtype), tf.TensorShape(kind.shape)


def _for_each(tensor: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns a tensor once for each replica.

    A resource such as a table is another tensor for each: of two operations with the same handle
    `tf.function` has the second wait for the first, and replicas wait for each other.
    """
    if tensor.dtype != tf.resource:
        return [tensor] * count
    with tf.init_scope():
        return [tensor, *(tf.identity(tensor) for _ in range(count - 1))]


def _state(variable: DistributedVariable) -> Layout:
    if isinstance(variable, ShardedVariable):
        return layout_of_parts(variable.sharding)
    if not isinstance(variable, SyncOnReadVariable):
        return REPLICATED
    if variable.aggregation == tf.VariableAggregation.SUM:
        return PARTIAL
    if variable.aggregation == tf.VariableAggregation.MEAN:
        # Where replicas train by themselves each goes on with its own.
        exchange = variable.distribute_strategy.extended.replicas.exchange
        return REPLICATED if exchange.replicas_differ else LOCAL
    return REPLICATED


def _is_variable(tensor: tf.Tensor) -> bool:
    if tensor.dtype != tf.resource:
        return False
    data = handle_data(tensor)
    return bool(data is not None and data.is_set and data.shape_and_type)


def _copies(handle: tf.Tensor, devices: Sequence[str]) -> list[tf.Variable]:
    """Makes copies of a variable that was made outside of the strategy's scope."""
    dtype, shape = _kind(handle)
    made = []
    with tf.init_scope():
        value = value_of(handle)
        for device in devices:
            with tf.device(device):
                made.append(tf.Variable(value, trainable=False, shape=shape, dtype=dtype))
    return made
