"""The check that all ranks have read the same global batch, of which each takes its own share.

The ranks tell each other numbers of a batch as its step begins: collectives of shares of different
batches would wait for each other, or mix them. With these they tell the learning rates.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp.base.recording import Recorder
from tfdp.communication.replicas import (
    BatchShard,
    TurnBatchShard,
    batch_fingerprints,
    of_replica,
    replicas_of,
    rows_of,
    unequal_data,
)
from tfdp.keras import program_recording
from tfdp.keras.trainer import epoch_agreement


def checked(
    strategy: Any, data: Any, recorder: Recorder | None = None, trained: Any = None
) -> list[tf.Operation]:
    """Has it checked that all ranks have read the same batch; returns what a step is to wait for.

    Args:
      strategy: The strategy, whose processes must all call it.
      data: A step's data: a `BatchShard`, or a whole batch.
      recorder: Records how long ranks wait for each other here, if any does.
      trained: The model that the step trains, whose learning rates are checked, too.

    Raises:
      tf.errors.InvalidArgumentError: The ranks' batches or learning rates differ; raised when the
        step runs. See `unequal_data.explained`.
    """
    replicas = replicas_of(strategy)
    if replicas is None or replicas.processes.world_size == 1:
        return []
    numbers = _told(data)
    if numbers is None:
        return []
    rates = {} if trained is None else epoch_agreement.learning_rates(trained)
    bits = [tf.cast(tf.bitcast(rate, tf.int32), tf.int64) for rate in rates.values()]
    numbers = tf.concat([numbers[:1], *([each] for each in bits), numbers[1:]], 0)
    with program_recording.meeting(recorder, numbers) as told:
        told.append(strategy.extended.of_all_processes(numbers))
    rows = data.rows if isinstance(data, BatchShard) else data
    # Where lengths differ, the rows differ as well: what is named first is said.
    names = [unequal_data.EXAMPLES, *rates, *batch_fingerprints.names(rows)]
    return unequal_data.checks(told[0], names[: numbers.shape[0]])


def _told(data: Any) -> tf.Tensor | None:
    """Returns a batch's length, and the leaves' fingerprints where they are known; None: nothing.

    Replicas that read by themselves have counted together, and each has other rows.
    """
    if isinstance(data, TurnBatchShard):
        return None
    if isinstance(data, BatchShard):
        return of_replica(0, data.place)[3:]
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    if not leaves or any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in leaves):
        return None
    length = tf.constant(1, tf.int64) if leaves[0].shape.rank == 0 else rows_of(leaves[0])
    return tf.concat([[length], batch_fingerprints.of_leaves(data)], 0)
