"""Steps that run eagerly: each process runs the whole batch, and all copies get what it writes.

Eagerly there is no program that another could be derived of. So every process does what one device
does, N times the work together, and is exact: all have the same batches and random states.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdp.communication.replicas import BatchShard, Replicas
from tfdp.data.distributed import batch_sharding
from tfdp.strategy import sharded_variable
from tfdp.strategy._tensorflow import DistributedValues, SyncOnReadVariable
from tfdp.strategy.programs import tracing
from tfdp.strategy.programs.uneven_batches import RowCounts
from tfdp.strategy.sharded_variable import ShardedVariable

_SUBJECT = "eager steps"


def run(
    strategy: Any,
    replicas: Replicas,
    containers: Mapping[int, Any],
    step: Callable[[object], object],
    data: object,
) -> object:
    """Runs a step on the whole batch, as one device does.

    Args:
      strategy: The strategy.
      replicas: Its replicas.
      containers: The variables that were made in its scope, to which the step may add.
      step: The step.
      data: The `BatchShard` of all local replicas, or what is no batch.
    """
    if replicas.num_replicas == 1:
        containers = {}
    elif _SUBJECT not in strategy.adapter_state.warned_about:
        strategy.adapter_state.warned_about.add(_SUBJECT)
        if replicas.processes.rank == 0:
            logging.getLogger("tfdp").warning(
                "Eager steps (`run_eagerly=True`) run the whole batch in each process, as one "
                "device does. To look into a step that is right; to train leave it out."
            )
    if isinstance(data, BatchShard):
        data = _whole(replicas, data)
    sharded = [each for each in list(containers.values()) if isinstance(each, ShardedVariable)]
    for variable in _with_copies(containers):
        if isinstance(variable, SyncOnReadVariable):
            variable.values[0].assign(variable.read_value())
    with sharded_variable.held_whole(sharded), tracing.as_on_one_device(strategy):
        result = step(data)
    for variable in _with_copies(containers):
        _spread(replicas, variable)
    return result


def _with_copies(containers: Mapping[int, Any]) -> list[Any]:
    """Returns variables of which each replica has a copy, of its own or of the value."""
    return [each for each in list(containers.values()) if not isinstance(each, ShardedVariable)]


def _spread(replicas: Replicas, variable: Any) -> None:
    """Gives all copies of a variable the first one's value; or nothing, where they are added up."""
    first, *others = variable.values
    is_sum = isinstance(variable, SyncOnReadVariable) and (
        variable.aggregation == tf.VariableAggregation.SUM
    )
    if is_sum and replicas.processes.rank:
        others = [first, *others]
    value = tf.zeros_like(first) if is_sum else first.read_value()
    for copy in others:
        copy.assign(value)


def _whole(replicas: Replicas, shard: BatchShard) -> Any:
    """Returns the rows of the whole batch, without padding rows."""
    leaves = tf.nest.flatten(shard.rows)
    lengths = RowCounts.of(shard)
    given = [index for index, leaf in enumerate(leaves) if isinstance(leaf, DistributedValues)]
    batches = dict(zip(given, lengths.batches(len(given)), strict=True))
    counts = lengths.counts(len(given), replicas.num_replicas)
    first = replicas.processes.rank * replicas.processes.local_size
    for index, batch in batches.items():
        parts = leaves[index].values
        own = [
            batch_sharding.first_rows(part, tf.cast(counts[batch][first + at], tf.int64))
            for at, part in enumerate(parts)
        ]
        if isinstance(own[0], tf.SparseTensor):
            leaves[index] = tf.sparse.concat(0, own)
        else:
            leaves[index] = replicas.gather_rows(tf.concat(own, 0))
    return tf.nest.pack_sequence_as(shard.rows, leaves)
