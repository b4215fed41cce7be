"""Compressed sums of gradients.

A compression of single sums takes gradients as they reach an optimizer, scaled against underflow;
of a window those that are accumulated, when it closes.

One of updates keeps something for an optimizer and a variable. It is made where the optimizer is
built, and changes in updates alone. So gradients stay partial until the optimizer updates: after
it has decided not to skip the step, and unscaled, and before it clips.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Transport
from tfdp.communication.replicas import Value
from tfdp.compression import RESIDUAL, Bucket, Compression, UpdateCompression
from tfdp.compression.exchange import exchange_between
from tfdp.errors import GradientError
from tfdp.keras import step_recording
from tfdp.keras._keras import BaseOptimizer, key_of_variable, strategy_of_optimizer
from tfdp.keras.optimizer.compression_slots import check_momentum_of, make_slots, slots_of
from tfdp.keras.optimizer.per_replica_updates import PerReplicaUpdates, call
from tfdp.keras.optimizer.update_protocol import accumulates, check_range, traced_update
from tfdp.keras.replica_step import ReplicaStep


class Compressed(PerReplicaUpdates):
    """A compression of single sums sums gradients."""

    def __init__(self, compression: Compression | UpdateCompression) -> None:
        self.compression = compression

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Sums gradients, unless they are accumulated.

        Raises:
          ValueError: Gradients that are scaled against underflow would be summed without the scale.
        """
        if accumulates(optimizer):
            check_range(self.compression, optimizer)
            return contextlib.nullcontext(gradients)
        return contextlib.nullcontext(call(gradients, _summed))

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Sums what a window has accumulated."""
        return call(gradients, _summed) if self._waits() else list(gradients)

    def all_finite(
        self,
        gradients: list[Value | None],
        whole: Callable[[list[Value | None]], Any],
    ) -> Any:
        """Asks it of the sums; of gradients that a window accumulates replicas vote."""
        return super().all_finite(gradients, whole) if self._waits() else whole(gradients)

    def _waits(self) -> bool:
        """Returns whether gradients are still partial where an optimizer decides on a step."""
        return accumulates(traced_update().outermost)


class CompressedUpdates(Compressed):
    """A compression of updates sums gradients where an optimizer updates."""

    compression: UpdateCompression

    @contextlib.contextmanager
    def building(self, optimizer: BaseOptimizer, variables: Sequence[Any]) -> Iterator[None]:
        """Makes what the compression keeps for each variable.

        Raises:
          ValueError: Compression and optimizer both have momentum, or the compression's cannot be
            kept.
        """
        check_momentum_of(optimizer, variables)
        yield
        make_slots(optimizer)

    def reaching(
        self, optimizer: BaseOptimizer, gradients: list[Value | None], variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager[list[Value | None]]:
        """Leaves gradients as they are: they are partial until the update."""
        return contextlib.nullcontext(gradients)

    def _waits(self) -> bool:
        return True

    def clipped(
        self, optimizer: BaseOptimizer, gradients: list[Value], variables: Sequence[Any]
    ) -> list[Value | None]:
        """Sums gradients."""
        given = made_dense(self.compression, optimizer, gradients, variables)

        def sums(step: ReplicaStep, values: list[Value], are_own: list[bool]) -> list[Value]:
            update = tf.cast(values.pop(), tf.int32)
            own = [index for index in range(len(values)) if are_own[index]]
            check_momentum(step, variables, values, own)
            with recording.watching_buckets():
                totals = summed(
                    step,
                    optimizer,
                    [values[index] for index in own],
                    [variables[index] for index in own],
                    update,
                )
            for index, total in zip(own, totals, strict=True):
                values[index] = total
            return values

        number = tf.convert_to_tensor(optimizer.iterations)
        return call([*given, number], sums, lambda values: values[:-1])

    def check_left_out(self) -> None:
        """Checks that the compression does not have the momentum, which whole sums have not.

        Raises:
          GradientError: It has.
        """
        if self.compression.has_momentum:
            raise GradientError(
                f"All gradients must reach the update to get the momentum of {self.compression!r}, "
                "but a method of the optimizer's own leaves some out. Give `apply` the variables "
                "that it is to update, or use tfdp.compression.ErrorFeedback and an optimizer with "
                "momentum."
            )


def _summed(step: ReplicaStep, values: list[Value], are_own: list[bool]) -> list[Value]:
    own = [index for index, is_own in enumerate(are_own) if is_own]
    with recording.watching_buckets():
        totals = step.replicas.sum_without_gradient([values[index] for index in own], compress=True)
    for index, total in zip(own, totals, strict=True):
        values[index] = total
    return values


def check_momentum(
    step: ReplicaStep,
    variables: Sequence[Any],
    gradients: Sequence[Value | None],
    local: Sequence[int],
) -> None:
    """Checks that no gradient passes by a compression that has the momentum of training.

    Args:
      step: The replica's step.
      variables: The variables that are to be updated.
      gradients: Their gradients.
      local: The positions of gradients that are the replica's own, not summed yet.

    Raises:
      GradientError: One does.
    """
    compression = exchange_between(step.replicas).update_compression
    if compression is None or not compression.has_momentum:
        return
    for index, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
        if gradient is None or getattr(variable, "overwrite_with_gradient", False):
            continue
        if not can_wait(gradient):
            raise GradientError(
                f"Gradients must be dense float32 tensors of known shapes to get the momentum of "
                f"{compression!r}, but that of {variable.name!r} is {type(gradient).__name__} of "
                f"{gradient.dtype.name} {gradient.shape}. For rows of a table use a "
                "`largest_table` of at least its rows; or tfdp.compression.ErrorFeedback and an "
                "optimizer with momentum."
            )
        if step.num_replicas > 1 and index not in local:
            raise GradientError(
                f"Gradients must come from the replica's tape to get the momentum of "
                f"{compression!r}, but that of {variable.name!r} is the same on all replicas: it "
                "was summed before, or is none of the examples'. Use "
                "tfdp.compression.ErrorFeedback and an optimizer with momentum."
            )


def made_dense(
    compression: UpdateCompression,
    optimizer: BaseOptimizer,
    gradients: Sequence[Value],
    variables: Sequence[Any],
) -> list[Value]:
    """Returns gradients, with rows of tables as the dense gradient that a compression takes.

    Rows that a batch chose several times are added up, as in a product with one-hot rows.
    """
    taken, found = slots_of(optimizer), list(gradients)
    for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        is_taken = key_of_variable(optimizer, variable) in taken
        if not is_taken or not isinstance(gradient, tf.IndexedSlices):
            continue
        if compression.takes_rows_of(variable):
            rows = variable.shape[0]
            total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
            found[index] = tf.ensure_shape(total, variable.shape)
        else:
            _warn_of_rows(optimizer)
    return found


def takes(optimizer: BaseOptimizer, gradient: Value | None, variable: Any) -> bool:
    """Returns whether the gradient of a variable is compressed."""
    return key_of_variable(optimizer, variable) in slots_of(optimizer) and can_wait(gradient)


def can_wait(gradient: Value | None) -> bool:
    """Returns whether a gradient is of the kind that is compressed."""
    return (
        gradient is not None
        and not isinstance(gradient, tf.IndexedSlices)
        and gradient.dtype == tf.float32
        and gradient.shape.is_fully_defined()
    )


def summed(
    step: ReplicaStep,
    optimizer: BaseOptimizer,
    gradients: Sequence[Value],
    variables: Sequence[Any],
    update: tf.Tensor,
) -> list[Value]:
    """Returns the sums of an update's own gradients: compressed where it is so, else whole.

    Args:
      step: The replica's step.
      optimizer: The optimizer that updates.
      gradients: The per-replica gradients.
      variables: The variables that they belong to.
      update: The number of the update, an int32 scalar.
    """
    compressed = [
        index
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        if takes(optimizer, gradient, variable)
    ]
    whole = [index for index in range(len(gradients)) if index not in compressed]
    totals = list(gradients)
    sums = step.replicas.sum_without_gradient([gradients[i] for i in whole])
    sums += sums_of_taken(
        step,
        optimizer,
        [gradients[i] for i in compressed],
        [variables[i] for i in compressed],
        update,
    )
    for index, total in zip(whole + compressed, sums, strict=True):
        totals[index] = total
    return totals


def sums_of_taken(
    step: ReplicaStep,
    optimizer: BaseOptimizer,
    gradients: Sequence[Value],
    variables: Sequence[Any],
    update: tf.Tensor,
    shardings: Sequence[Sharding] | None = None,
) -> list[tf.Tensor]:
    """Returns the compressed sums of gradients that the compression takes: see `summed`.

    Args:
      shardings: How each is sharded, for the replica's shards of the sums; None: whole sums.
    """
    compression = exchange_between(step.replicas).update_compression
    assert compression is not None
    slots = slots_of(optimizer)
    numbers = {key: number for number, key in enumerate(slots)}
    keys = [key_of_variable(optimizer, variable) for variable in variables]

    def compress(members: Sequence[int], transport: Transport) -> Sequence[tf.Tensor]:
        kept = [slots[keys[index]] for index in members]
        own_gradients = [tf.convert_to_tensor(gradients[index]) for index in members]
        bucket = Bucket(
            own_gradients,
            [{name: held.read_value() for name, held in each.items()} for each in kept],
            tuple(numbers[keys[index]] for index in members),
            update,
        )
        if shardings is None:
            found = compression.sum(bucket, transport)
        else:
            own_shardings = [shardings[index] for index in members]
            found = compression.compressed_parts(bucket, own_shardings, transport)
        step_recording.compression_error(
            [
                after.get(RESIDUAL, given - own)
                for after, given, own in zip(found.slots, own_gradients, found.own, strict=True)
            ],
            own_gradients,
        )
        with step.replicas.identical_writes():
            for each, values in zip(kept, found.slots, strict=True):
                for name, held in each.items():
                    held.assign(values[name])
        return found.sums

    payload_bytes = [compression.payload_bytes(tuple(gradient.shape)) for gradient in gradients]
    return step.replicas.sum_by(compress, gradients, payload_bytes)


def _warn_of_rows(optimizer: BaseOptimizer) -> None:
    strategy = strategy_of_optimizer(optimizer)
    said = strategy.adapter_state.warned_about
    if strategy.rank == 0 and "compressed_rows" not in said:
        said.add("compressed_rows")
        logging.getLogger("tfdp").warning(
            "Gradients of large tables (tf.IndexedSlices) are summed whole, without the "
            "strategy's `compression`. Give it a `largest_table` of at least their rows, or name "
            "the tables in its `exclude`, such as exclude=['bias$', 'embeddings$'], to keep no "
            "residuals for them."
        )
