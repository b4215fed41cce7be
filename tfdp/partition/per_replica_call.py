"""Calls in a traced program in whose place each replica runs code of its own, written for it.

On one device gradients that reach an optimizer are what they are. Where replicas are to send less
than their sums, or nothing, the program holds a call in their place. Each replica runs a function
there that is given what it holds of the tensors, and that exchanges with the others what it needs.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import map_values
from tfdp.partition.source import SourceOp

# Tensors, or the rows of some that are zeros elsewhere.
Value: TypeAlias = tf.Tensor | tf.IndexedSlices

# What a replica runs: it is given values, and of each whether it is the replica's partial of what
# one device has; if not, it is the whole, or the replica's own.
OwnFunction: TypeAlias = Callable[[Sequence[Value], Sequence[bool]], Sequence[Value] | None]

# The attribute of a function's graph that says what calls of the function stand for.
_CALL = "_tfdp_per_replica_call"


class PerReplicaCodeError(Exception):
    """A replica's own code failed while it was traced, with the error that is the cause."""


class PerReplicaCall:
    """What a call in a traced program stands for.

    Attributes:
      of_replica: What a replica runs.
      are_rows: Of each value whether it is IndexedSlices.
      gives_alike: Whether all replicas are given the same by it; else each has its own.
      shardings: The sharding of each value that it gives, where each replica is given its shard;
        None: it gives no shards.
      beside: Whether what it exchanges runs beside the program's collectives.
      takes_rows: Whether it is given the numbers of examples after the values, see `own_call`.
    """

    def __init__(
        self,
        of_replica: OwnFunction,
        are_rows: Sequence[bool],
        gives_alike: bool,
        shardings: Sequence[Sharding] | None,
        beside: bool = False,
        takes_rows: bool = False,
    ) -> None:
        self.of_replica, self.are_rows = of_replica, list(are_rows)
        self.gives_alike, self.shardings, self.beside = gives_alike, shardings, beside
        self.takes_rows = takes_rows

    def run(self, tensors: Sequence[tf.Tensor], are_partials: Sequence[bool]) -> list[tf.Tensor]:
        """Runs it in the place of the call, given the tensors that `parts_of` makes of values."""
        found = self.of_replica(self.values(tensors), are_partials)
        return [part for value in found or () for part in parts_of(value)]

    def values(self, tensors: Sequence[tf.Tensor]) -> list[Value]:
        """Returns the values that consist of these tensors."""
        given = iter(tensors)
        return [
            tf.IndexedSlices(next(given), next(given), next(given)) if is_rows else next(given)
            for is_rows in self.are_rows
        ] + list(given)


def own_call(
    values: Sequence[Value],
    uses: Sequence[tf.Variable],
    of_replica: OwnFunction,
    on_one_device: Callable[[Sequence[Value]], Sequence[Value]] | None = None,
    gives_alike: bool = True,
    reads: Sequence[tf.Variable] = (),
    shardings: Sequence[Sharding] | None = None,
    beside: bool = False,
    takes_rows: bool = False,
) -> list[Value]:
    """Puts a call into the program that is being traced.

    Args:
      values: What replicas are given. It must be made of the program's tensors.
      uses: The variables that it may read and write. The program's other uses of them come before
        it or after it, as they were traced.
      of_replica: What a replica runs. It must not use other tensors of the program, and give as
        many values of the same kinds as `on_one_device`.
      on_one_device: What one device makes of the values; None: nothing.
      gives_alike: Whether all replicas are given the same by `of_replica`; else each has its own.
      reads: The variables that it may read alone.
      shardings: The sharding of each value that it gives, if each replica is given its shard;
        None: it gives no shards.
      beside: Whether what it exchanges runs beside the program's other collectives, rather than
        after those before it: none of them waits for it, but for those that need its results.
      takes_rows: Whether `of_replica` is given, after the values, how many examples the replica has
        of the program's batch, and how many all have. It may do without some replicas' terms, and
        so no value may have been summed before, or depend on such a sum.

    Returns:
      What one device makes of the values.
    """
    are_rows = [isinstance(value, tf.IndexedSlices) for value in values]
    call = PerReplicaCall(of_replica, are_rows, gives_alike, shardings, beside, takes_rows)

    def tfdp_per_replica_call(*tensors: tf.Tensor) -> list[Value]:
        setattr(tf.compat.v1.get_default_graph(), _CALL, call)
        for variable in uses:
            held = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=held)
        for variable in reads:
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        found = [] if on_one_device is None else on_one_device(call.values(tensors))
        # What it gives is no argument's, which would be taken past the call.
        return [map_values(tf.identity, value) for value in found]

    parts = [part for value in values for part in parts_of(value)]
    found: list[Value] = tf.function(tfdp_per_replica_call, autograph=False)(*parts)
    return found


def parts_of(value: Value) -> list[tf.Tensor]:
    """Returns the tensors of which a value consists: of rows their values, places and the shape.

    Raises:
      ValueError: It has rows of a tensor whose shape is not given.
    """
    if not isinstance(value, tf.IndexedSlices):
        return [tf.convert_to_tensor(value)]
    if value.dense_shape is None:
        raise ValueError(
            "Rows of a tensor must come with its shape to be exchanged, but received IndexedSlices "
            "without `dense_shape`. Give it the shape of the variable."
        )
    return [value.values, value.indices, value.dense_shape]


def per_replica_call_of(op: SourceOp) -> PerReplicaCall | None:
    """Returns what a call of a function stands for; None: it is a call like any other."""
    function = op.graph.definition(op.attr("f"))
    return getattr(getattr(function, "graph", None), _CALL, None)
