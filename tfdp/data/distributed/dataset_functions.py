"""Input pipelines that a function makes: one for each process, or one for each replica."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdp.data.distributed.batch_sharding import rounds


def are_of_replicas(options: Any) -> bool:
    """Returns whether `tf.distribute.InputOptions` ask for a pipeline for each replica."""
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == per_replica


def check_per_worker(options: Any) -> None:
    """Raises NotImplementedError, as TensorFlow does, if each replica is to have a dataset whole.

    Args:
      options: `tf.distribute.InputOptions`, or None.
    """
    if are_of_replicas(options):
        raise NotImplementedError(
            "`experimental_replication_mode` must be PER_WORKER in "
            "`experimental_distribute_dataset`, which cuts each batch into the replicas' shares, "
            "but received PER_REPLICA. Leave the option out, or make a dataset for each replica: "
            "`strategy.distribute_datasets_from_function(fn, options)`, where `fn` is given a "
            "`tf.distribute.InputContext`."
        )


def contexts_of_replicas(ranks: Iterable[int], num_replicas: int) -> list[Any]:
    """Returns what a function is told that makes a pipeline for each replica of these ranks.

    >>> [context.input_pipeline_id for context in contexts_of_replicas(range(2, 4), 6)]
    [2, 3]
    """
    return [
        tf.distribute.InputContext(
            num_input_pipelines=num_replicas,
            input_pipeline_id=rank,
            num_replicas_in_sync=num_replicas,
        )
        for rank in ranks
    ]


def rounds_of(datasets: Iterable[tf.data.Dataset], readers: int) -> int:
    """Returns how many rounds datasets last, until none has an element left.

    Args:
      datasets: One dataset for each pipeline.
      readers: The number of replicas that get the elements of a pipeline in turn.

    >>> rounds_of([tf.data.Dataset.range(5), tf.data.Dataset.range(3)], 1)
    5
    """
    sizes = [int(dataset.cardinality().numpy()) for dataset in datasets]
    for special in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
        if special in sizes:
            return int(special)
    return rounds(max(sizes), readers)
