"""Compressed sums of gradients of which each replica gets its part, for `shard`.

Gradients are partial until an optimizer that is at work uses them, as with replicated sums: after
it has decided not to skip the step, and unscaled, for what the compression keeps of them has no
scale. Then per-replica code exchanges those that the compression takes and whose variables are
sharded; the shards of all others are summed as they are. Each window is compressed once, when it
ends, or each of its gradients, where windows are sharded.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.base.sharding import Sharding
from tfdp.communication.replicas import Value
from tfdp.compression import UpdateCompression
from tfdp.keras import step_recording
from tfdp.keras._keras import BaseOptimizer, iterations_of_optimizer
from tfdp.keras.optimizer.compressed_updates import made_dense, sums_of_taken, takes
from tfdp.keras.optimizer.compression_slots import make_slots
from tfdp.keras.optimizer.per_replica_updates import PerReplicaUpdates, call
from tfdp.keras.optimizer.sharded_updates import ShardedUpdates, sharding_for
from tfdp.keras.optimizer.update_protocol import Apply, accumulates, traced_update
from tfdp.keras.replica_step import ReplicaStep


class CompressedParts(PerReplicaUpdates, ShardedUpdates):
    """Each replica gets its part of compressed sums, where the variable can be sharded.

    Args:
      of_windows: Whether windows are sharded, too; else they are summed at their ends.
      compression: A compression that sums parts.
    """

    def __init__(self, of_windows: bool, compression: UpdateCompression) -> None:
        super().__init__(of_windows)
        self._compression = compression

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Shards what the optimizer keeps, and makes what the compression does."""
        with super().building(optimizer, variables):
            yield
        make_slots(optimizer)

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Leaves gradients as they are: they are partial until the optimizer uses them."""
        return contextlib.nullcontext(gradients)

    def applying(
        self,
        optimizer: BaseOptimizer,
        gradients: list[Value | None],
        variables: Sequence[Any],
        apply: Apply,
    ) -> None:
        """Sums the parts of what a window of parts accumulates."""
        if self._has_windows_of_parts():
            gradients = self._summed(optimizer, gradients, variables, is_update=False)
        apply(gradients)

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Sums parts, unless they were accumulated as such."""
        if self._has_windows_of_parts():
            return list(gradients)
        return self._summed(optimizer, gradients, variables, is_update=True)

    def recorded(self, gradients: list[Value | None]) -> list[Value | None]:
        """Records the update that ends a window of parts; others are recorded with their sums."""
        return step_recording.update(gradients) if self._has_windows_of_parts() else gradients

    def _has_windows_of_parts(self) -> bool:
        return self._of_windows and accumulates(traced_update().outermost)

    def _summed(
        self,
        optimizer: BaseOptimizer,
        gradients: Sequence[Value | None],
        variables: Sequence[Any],
        is_update: bool,
    ) -> list[Value | None]:
        others: list[Value | None] = list(
            made_dense(self._compression, optimizer, gradients, variables)
        )
        places, shardings, given = [], [], []
        for index, (gradient, variable) in enumerate(zip(others, variables, strict=True)):
            sharding = sharding_for(optimizer, variable)
            if sharding is not None and takes(optimizer, gradient, variable):
                places.append(index)
                shardings.append(sharding)
                given.append(gradient)
                others[index] = None

        def parts(step: ReplicaStep, values: list[Value], are_own: list[bool]) -> list[Value]:
            update = tf.cast(values.pop(), tf.int32)
            own = [index for index in range(len(values)) if are_own[index]]
            with recording.watching_buckets(of_update=is_update):
                sums = sums_of_taken(
                    step,
                    optimizer,
                    [values[index] for index in own],
                    [variables[places[index]] for index in own],
                    update,
                    [shardings[index] for index in own],
                )
            for index, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
                values[index] = sums.pop(0) if are_own[index] else _part(step, value, sharding)
            return values

        number = tf.convert_to_tensor(iterations_of_optimizer(optimizer))
        sums = call([*given, number], parts, lambda values: values[:-1], shardings=shardings)
        found = self._marked(optimizer, others, variables)
        for index, total in zip(places, sums, strict=True):
            found[index] = total
        return found


def _part(step: ReplicaStep, whole: Value, sharding: Sharding) -> Value:
    """Returns the replica's part of what all have alike."""
    begin, end = sharding.bounds[step.rank : step.rank + 2]
    return tf.gather(whole, tf.range(begin, end), axis=sharding.axis)
