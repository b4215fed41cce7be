"""The comparison of ranks while they train: each step's batch and rates, and each epoch's end.

Collectives of shares of different batches would wait for each other, or mix them. A callback may
stop `fit`, or set a learning rate, at any time, and ranks of which some have it alone would part.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdp.base.recording import Recorder, meeting, taps_of
from tfdp.communication.replicas import (
    BatchShard,
    TurnBatchShard,
    batch_fingerprints,
    data_mismatch,
    num_lengths,
    of_replica,
    processes_of,
    replicas_of,
    rows_of,
)
from tfdp.compression.exchange import exchange_of
from tfdp.keras._keras import KerasVariable, rate_of_optimizer
from tfdp.keras.nested_optimizers import optimizers_of


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
        step runs. See `data_mismatch.explained`.
    """
    replicas = replicas_of(strategy)
    if replicas is None or replicas.processes.world_size == 1:
        return []
    numbers = _told(data)
    if numbers is None:
        return []
    rates = {} if trained is None else _learning_rates(trained)
    bits = [tf.cast(tf.bitcast(rate, tf.int32), tf.int64) for rate in rates.values()]
    numbers = tf.concat([numbers[:1], *([each] for each in bits), numbers[1:]], 0)
    if not exchange_of(strategy).replicas_wait:
        return [_noted(strategy, numbers)]
    with meeting([numbers], taps_of(recorder)) as told:
        told.append(strategy.extended.of_all_processes(numbers))
    rows = data.rows if isinstance(data, BatchShard) else data
    # Where lengths differ, the rows differ as well: what is named first is said.
    names = [data_mismatch.EXAMPLES, *rates, *batch_fingerprints.names(rows)]
    return data_mismatch.checks(told[0], names[: numbers.shape[0]])


class EpochsCompared(keras.callbacks.Callback):
    """A callback that finds where another one, which not all ranks have, parts them.

    And where ranks that do not wait in their steps have had other batches.

    A rank that stops by itself would leave `fit`, save and end, and the others would wait for it.
    It must come after the callbacks that may stop `fit`. Each rank sends a message for an epoch.
    """

    async_safe = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares; all processes must call it.

        Raises:
          RankMismatchError: Some ranks stop, or have other learning rates.
        """
        processes = processes_of(self.model.distribute_strategy)
        if processes.world_size == 1:
            return
        batches = self.model.distribute_strategy.adapter_state.batches
        if batches is not None:
            told = {"the batches so far": int(batches.numpy())}
            processes.compare("what ranks trained on until the end of an epoch", told)
        options: dict[str, object] = {
            f"`stop_training` after epoch {epoch + 1}": bool(self.model.stop_training)
        }
        for name, rate in _learning_rates(self.model).items():
            options[name] = data_mismatch.readable(rate.numpy())
        subject = f"{data_mismatch.SET_BY_CALLBACKS} by the end of an epoch"
        processes.compare(subject, options, data_mismatch.FOR_CALLBACKS)


def _learning_rates(model: Any) -> dict[str, tf.Tensor]:
    """Returns the learning rates that may be set, float32, by name; a schedule is no such rate."""
    found: dict[str, tf.Tensor] = {}
    for optimizer in optimizers_of(model):
        rate = rate_of_optimizer(optimizer)
        if isinstance(rate, KerasVariable):
            name = f"{data_mismatch.LEARNING_RATE} `{optimizer.name}`"
            name = f"{name} ({len(found)})" if name in found else name
            found[name] = tf.cast(tf.convert_to_tensor(rate.value), tf.float32)
    return found


def _noted(strategy: Any, numbers: tf.Tensor) -> tf.Operation:
    """Notes what a step is given, for the comparison at the end of the epoch."""
    state = strategy.adapter_state
    if state.batches is None:
        with tf.init_scope(), tf.device("CPU:0"):
            state.batches = tf.Variable(0, trainable=False, dtype=tf.int64)
    with tf.device("CPU:0"):
        places = tf.range(1, tf.size(numbers, tf.int64) + 1, dtype=tf.int64)
        noted = tf.reduce_sum(numbers * places)  # integers overflow to others alike
        return state.batches.assign(state.batches * 1_000_003 + noted, read_value=False)


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
