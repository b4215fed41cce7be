"""The check that all ranks have read the same global batch, of which each takes its own share.

The ranks tell each other numbers of a batch as its step begins: collectives of shares of different
batches would wait for each other, or mix them. With these they tell the learning rates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.base.recording import Recorder, meeting, taps_of
from tfdp.communication.replicas import (
    BatchShard,
    TurnBatchShard,
    batch_fingerprints,
    num_lengths,
    of_replica,
    replicas_of,
    rows_of,
    unequal_data,
)
from tfdp.errors import RankMismatchError
from tfdp.keras.trainer import rate_agreement


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
        step runs. See `explained`.
    """
    replicas = replicas_of(strategy)
    if replicas is None or replicas.processes.world_size == 1:
        return []
    numbers = _told(data)
    if numbers is None:
        return []
    rates = [] if trained is None else rate_agreement.bits(trained)
    numbers = tf.concat([numbers[:1], *([rate] for rate in rates), numbers[1:]], 0)
    with meeting([numbers], taps_of(recorder)) as told:
        told.append(strategy.extended.of_all_processes(numbers))
    by_rank = told[0]
    alike = tf.reduce_all(by_rank == by_rank[:1], 0)
    said = [unequal_data.UNEQUAL, by_rank[:, 0]]
    checks = [tf.raw_ops.Assert(condition=alike[0], data=said, summarize=-1)]
    if numbers.shape[0] != 1:
        # Where lengths differ, the rows differ as well: that is said of the lengths.
        names = [
            *([] if trained is None else rate_agreement.names(trained)),
            *batch_fingerprints.names(data.rows if isinstance(data, BatchShard) else data),
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            checks += unequal_data.checks(by_rank[:, 1:], names)
    return [check for check in checks if check is not None]


@contextlib.contextmanager
def explained(strategy: Any) -> Iterator[None]:
    """Raises RankMismatchError, which names the ranks and the data, if a step finds that."""
    try:
        with unequal_data.explained(strategy.rank):
            yield
    except RankMismatchError as error:
        found = None if error.__cause__ is None else unequal_data.found_in(error.__cause__)
        if found is None or not rate_agreement.are_named(found[0]):
            raise
        raise rate_agreement.differ(strategy.rank, *found) from error.__cause__


def _told(data: Any) -> tf.Tensor | None:
    """Returns a batch's length, and the leaves' fingerprints where they are known; None: nothing.

    Replicas that read by themselves have counted together, and each has other rows.
    """
    if isinstance(data, TurnBatchShard):
        return None
    if isinstance(data, BatchShard):
        place, count = of_replica(0, data.place), num_lengths(of_replica(0, data.known))
        return tf.concat([place[3:4], place[4 + count :]], 0)
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    if not leaves or any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in leaves):
        return None
    length = tf.constant(1, tf.int64) if leaves[0].shape.rank == 0 else rows_of(leaves[0])
    return tf.concat([[length], batch_fingerprints.of_leaves(data)], 0)
