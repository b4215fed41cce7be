"""What surrounds a replica function: the step that it takes part in, and that step's end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tfdp.keras_adapter.random.random_layers import unseeded
from tfdp.keras_adapter.step import Step, Unseeded, entered
from tfdp.keras_adapter.variables.effects import Effects
from tfdp.keras_adapter.variables.statistics import average_written
from tfdp.replicas import Replicas

# What `strategy.run` is given: TensorFlow and users call it with whatever arguments they like.
ReplicaFunction: TypeAlias = Callable[..., Any]


@contextlib.contextmanager
def around_replicas(
    fn: ReplicaFunction, strategy: tf.distribute.Strategy, replicas: Replicas
) -> Iterator[ReplicaFunction]:
    """The replica function `fn` with what must happen before and after it, to be called meanwhile.

    Args:
      fn: Called once for each replica of this process, in threads of their own.
      strategy: Whose replicas they are.
      replicas: What they do together.

    Yields:
      The function to be called in its place.
    """
    with unseeded(strategy) as generator:
        effects = Effects()
        yield _around_replica(fn, strategy, replicas, generator, effects)
        effects.arrange()


def _around_replica(
    fn: ReplicaFunction,
    strategy: tf.distribute.Strategy,
    replicas: Replicas,
    generator: Unseeded,
    effects: Effects,
) -> ReplicaFunction:
    @tf.autograph.experimental.do_not_convert
    def run(*args: Any, **kwargs: Any) -> Any:
        step = Step(strategy, replicas, replicas.trace(), unseeded=generator)
        with entered(step), effects.of_replica(step):
            result = fn(*args, **kwargs)
            average_written(step)
        step.end()
        return result

    return run
