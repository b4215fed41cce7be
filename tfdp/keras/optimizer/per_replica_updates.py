"""Per-replica code in an optimizer's program: see `partition.per_replica_call`."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.base.sharding import Sharding
from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.replicas import Value
from tfdp.keras.optimizer.update_protocol import Updating
from tfdp.keras.replica_step import ReplicaStep, current
from tfdp.partition.per_replica_call import own_call

# What a replica runs: given its step, values, and of each whether it is partial.
OfReplica = Callable[[ReplicaStep, list[Value], list[bool]], Sequence[Value] | None]


def call(
    values: Sequence[Value | None],
    of_replica: OfReplica,
    on_one_device: Callable[[list[Value]], Sequence[Value]] | None = None,
    uses: Sequence[Any] = (),
    gives_alike: bool = True,
    reads: Sequence[Any] = (),
    shardings: Sequence[Sharding] | None = None,
    beside: bool = False,
    takes_rows: bool = False,
) -> list[Value | None]:
    """Puts a call into the program that is being traced; run eagerly it is as on one device.

    Args:
      values: What replicas are given; None where there is nothing.
      of_replica: What a replica runs.
      on_one_device: What one device has in its place; None: the values, as they are.
      uses: The variables that `of_replica` reads and writes.
      gives_alike: Whether all replicas are given the same.
      reads: Those that it reads alone.
      shardings: The sharding of each value that there is, if `of_replica` gives shards.
      beside: Whether what `of_replica` exchanges holds up no other collective of the program.
      takes_rows: Whether it is given the numbers of its examples and of all, where a value is
        partial, after the values; see `per_replica_call.own_call`.

    Returns:
      What one device has in its place; of the values None where there was nothing.
    """
    places = [index for index, value in enumerate(values) if value is not None]
    given: list[Value] = [value for value in values if value is not None]
    tap = recording.current()

    def run(own: Sequence[Value], are_partials: Sequence[bool]) -> Sequence[Value] | None:
        step = current()
        assert step is not None
        with recording.tapped(None if tap is None else tap.of_replica(step.index)):
            return of_replica(step, list(own), list(are_partials))

    instead = (lambda own: own) if on_one_device is None else on_one_device
    if tf.executing_eagerly():
        found = list(instead(given))
    else:
        written, read = (list(map(tensorflows, variables)) for variables in (uses, reads))
        found = own_call(
            given,
            written,
            run,
            lambda own: instead(list(own)),
            gives_alike,
            read,
            shardings,
            beside,
            takes_rows,
        )
    if on_one_device is not None:
        return list(found)
    kept: list[Value | None] = [None] * len(values)
    for place, value in zip(places, found, strict=True):
        kept[place] = value
    return kept


def when(condition: tf.Tensor, act: Callable[[], Any]) -> None:
    """Calls `act`, which returns nothing that is used, where the condition holds.

    Args:
      condition: A boolean scalar, the same on all replicas.
      act: What is done.
    """

    def acted() -> tf.Tensor:
        act()
        return tf.constant(True)

    tf.cond(condition, acted, lambda: tf.constant(False))


def dense(gradient: Value | None, variable: Any) -> tf.Tensor | None:
    """Returns a gradient with rows of a table as that of the table."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return tf.ensure_shape(total, variable.shape)


class PerReplicaUpdates(Updating):
    """Gradients that per-replica code is given: it sums them, or not, and records it."""

    def recorded(self, gradients: list[Value | None]) -> list[Value | None]:
        """Leaves the recording to that code."""
        return gradients

    def all_finite(
        self,
        gradients: list[Value | None],
        whole: Callable[[list[Value | None]], Any],
    ) -> Any:
        """Lets replicas vote, of which each asks it of its own terms: one replica's no decides."""

        def vote(step: ReplicaStep, own: list[Value], are_own: list[bool]) -> list[Value]:
            against = 1.0 - tf.cast(whole(list(own)), tf.float32)
            return [step.replicas.sum_without_gradient([against])[0] < 0.5]

        (found,) = call(gradients, vote, lambda own: [whole(list(own))])
        return found
