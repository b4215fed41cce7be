"""The wrapping of replica functions: each runs within a `ReplicaStep`, which ends with it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp.communication.replicas import Replicas
from tfdp.keras.optimizer.run_updates import SummedUpdates
from tfdp.keras.replica_step import ReplicaStep, entered
from tfdp.keras.run.effect_order import Effects
from tfdp.keras.run.seeds import unseeded
from tfdp.keras.run.statistics import average_written

# A function that `strategy.run` is given, with whatever arguments TensorFlow and users like.
ReplicaFunction: TypeAlias = Callable[..., Any]


@contextlib.contextmanager
def around_replicas(
    fn: ReplicaFunction, strategy: tf.distribute.Strategy, replicas: Replicas
) -> Iterator[ReplicaFunction]:
    """Wraps a replica function in what must happen before and after it on each replica.

    Args:
      fn: The function that each replica of this process calls, in a thread of its own.
      strategy: The strategy that the replicas belong to.
      replicas: The strategy's replicas.

    Yields:
      The function that the replicas must call in place of `fn`, within the context.
    """
    with unseeded(strategy) as generator:
        effects, updates = Effects(), SummedUpdates()

        @tf.autograph.experimental.do_not_convert
        def run(*args: Any, **kwargs: Any) -> Any:
            step = ReplicaStep(strategy, replicas, generator, updates)
            try:
                with entered(step), effects.of_replica():
                    result = fn(*args, **kwargs)
                    average_written(step)
            finally:
                step.end()
            return result

        yield run
        effects.arrange()
