"""What surrounds a replica function: the step that it takes part in, and that step's end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.effects import Effects
from tfdp.keras_adapter.randomness import unseeded
from tfdp.keras_adapter.statistics import average_written
from tfdp.keras_adapter.step import Step, Unseeded, entered


@contextlib.contextmanager
def around_replicas(
    fn: Callable[..., Any], strategy: tf.distribute.Strategy
) -> Iterator[Callable[..., Any]]:
    """The replica function `fn` with what must happen before and after it, to be called meanwhile.

    Args:
      fn: Called once for each replica of this process, in threads of their own.
      strategy: Whose replicas they are.

    Yields:
      The function to be called in its place.
    """
    with unseeded(strategy) as generator:
        effects = Effects()
        yield _around_replica(fn, generator, effects)
        effects.arrange()


def _around_replica(
    fn: Callable[..., Any], generator: Unseeded, effects: Effects
) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def run(*args: Any, **kwargs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        rank = tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
        step = Step(context=context, rank=int(rank), unseeded=generator)
        with entered(step), effects.of_replica(step):
            result = fn(*args, **kwargs)
            average_written(step)
        step.end()
        return result

    return run
