"""Compressions of updates: what they keep for each variable, and the sums that they make.

What a compression keeps belongs to an optimizer and a variable. It is made where the optimizer is
built, and changes in updates alone. So the gradients that are compressed wait, as those do that an
optimizer accumulates, until the optimizer updates: after it has decided not to skip the step, and
unscaled, and before it clips.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.collectives import Transport
from tfdp.compression import RESIDUAL, Bucket, Slot, UpdateCompression
from tfdp.errors import GradientError
from tfdp.keras_adapter._keras import (
    BaseOptimizer,
    key_of_variable,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras_adapter.gradients.nested_optimizers import innermost
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.training import step_recording
from tfdp.recording import Watch
from tfdp.replicas import Replicas, Value, exchange_of, replicas_of

# The attribute of an optimizer: by the key of each variable that is compressed its slots by name.
# The attributes of an optimizer are where `tfdp.checkpoint` finds variables that Keras does not
# list; in Keras' own list they would make files of the model unlike those of one device.
_SLOTS = "tfdp_compression_slots"


def prepare(optimizer: BaseOptimizer, variables: Sequence[Any]) -> None:
    """Checks an optimizer that is about to be built.

    Raises:
      ValueError: Compression and optimizer both have momentum, or the compression's cannot be kept.
    """
    compression = exchange_of(strategy_of_optimizer(optimizer)).update_compression
    _check_momentum(optimizer, compression, variables)


def make_slots(optimizer: BaseOptimizer) -> None:
    """Makes what the strategy's compression keeps for each variable, once for a built optimizer."""
    strategy = strategy_of_optimizer(optimizer)
    compression = exchange_of(strategy).update_compression
    replicas = replicas_of(strategy)
    is_wrapper = innermost(optimizer) != [optimizer]
    if compression is None or replicas is None or is_wrapper or _SLOTS in vars(optimizer):
        return
    known = list(variables_of_optimizer(optimizer))
    kept = compression.slots_of(known)
    if replicas.num_replicas > 1 and strategy.rank == 0:
        _warn_if_idle(compression, known, kept)
    # Keras would track an attribute that is set.
    vars(optimizer)[_SLOTS] = {
        key_of_variable(optimizer, variable): {
            name: _made(strategy, replicas, variable, name, slot) for name, slot in slots.items()
        }
        for variable, slots in zip(known, kept, strict=True)
        if slots is not None
    }


def deferred(step: Step, optimizer: BaseOptimizer, variables: Sequence[Any]) -> tuple[bool, ...]:
    """Returns for each variable whether its gradient may wait for the optimizer's update.

    Args:
      step: The replica's step.
      optimizer: The outermost optimizer, built or not.
      variables: The variables that it is to update.

    Raises:
      GradientError: An optimizer's own `apply` would take away the compression's momentum.
    """
    compression = step.replicas.exchange.update_compression
    if compression is None:
        return tuple(False for _ in variables)
    chain = (optimizer, *innermost(optimizer))
    own = sorted({type(each).__name__ for each in chain if _has_own_apply(each)})
    if own and compression.has_momentum:
        raise GradientError(
            f"Gradients must come to the update untouched to get the momentum of {compression!r}, "
            f"but {', '.join(own)} has an `apply` of its own, which may use them before. Override "
            "`update_step` alone, or use tfdp.compression.ErrorFeedback and an optimizer with "
            "momentum."
        )
    if own:
        step.warn_once(
            "own_apply",
            "Gradients that are given to %s are summed whole, without the strategy's `compression`,"
            " because its own `apply`, or another method of its own, may use them before the "
            "update. They are compressed in optimizers that override `update_step` alone.",
            ", ".join(own),
        )
        return tuple(False for _ in variables)
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(list(variables))
        optimizer.built = True
    taken = {key for one in innermost(optimizer) for key in _slots(one)}
    return tuple(key_of_variable(optimizer, variable) in taken for variable in variables)


def check_accumulating(step: Step, optimizer: BaseOptimizer) -> None:
    """Checks that gradients come untouched to an optimizer that accumulates them.

    Raises:
      GradientError: An `apply` of its own may use what is compressed only when a window closes.
    """
    compression = step.replicas.exchange.update_compression
    chain = (optimizer, *innermost(optimizer))
    own = sorted({type(each).__name__ for each in chain if _has_own_apply(each)})
    if compression is not None and own and step.num_replicas > 1:
        raise GradientError(
            f"Gradients that {compression!r} compresses when a window of "
            "`gradient_accumulation_steps` closes must come to the optimizer untouched, but "
            f"{', '.join(own)} has an `apply` of its own, or another method of its own, which may "
            "use them before. Override `update_step` alone, or leave out `compression` or "
            "`gradient_accumulation_steps`."
        )


def check_momentum(
    step: Step, variables: Sequence[Any], gradients: Sequence[Value | None], local: Sequence[int]
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
    compression = step.replicas.exchange.update_compression
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


def made_dense(step: Step, gradient: Value | None, variable: Any) -> Value | None:
    """Returns rows of a table as the dense gradient that the compression takes of it, if it does.

    Rows that a batch chose several times are added up, as in a product with one-hot rows.
    """
    compression = step.replicas.exchange.update_compression
    if compression is None or not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not compression.takes_rows_of(variable):
        return gradient
    total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return tf.ensure_shape(total, variable.shape)


def can_wait(gradient: Value | None) -> bool:
    """Returns whether a gradient is of the kind that is compressed."""
    return (
        gradient is not None
        and not isinstance(gradient, tf.IndexedSlices)
        and gradient.dtype == tf.float32
        and gradient.shape.is_fully_defined()
    )


def summed(
    step: Step,
    optimizer: BaseOptimizer,
    gradients: Sequence[Value],
    variables: Sequence[Any],
    watch: Watch | None,
) -> list[Value]:
    """Returns the sums of an update's own gradients: compressed where it is so, else whole.

    Args:
      step: The replica's step.
      optimizer: The optimizer that updates.
      gradients: The replica's own gradients.
      variables: The variables that they belong to.
      watch: A listener that is told of each bucket.
    """
    compression = step.replicas.exchange.update_compression
    assert compression is not None
    slots = _slots(optimizer)
    numbers = {key: number for number, key in enumerate(slots)}
    keys = [key_of_variable(optimizer, variable) for variable in variables]
    compressed = [
        index
        for index, (key, gradient) in enumerate(zip(keys, gradients, strict=True))
        if key in slots and can_wait(gradient)
    ]
    whole = [index for index in range(len(keys)) if index not in compressed]
    update = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int32)

    def compress(members: Sequence[int], transport: Transport) -> Sequence[tf.Tensor]:
        chosen = [compressed[member] for member in members]
        kept = [slots[keys[index]] for index in chosen]
        own_gradients = [tf.convert_to_tensor(gradients[index]) for index in chosen]
        found = compression.sum(
            Bucket(
                own_gradients,
                [{name: held.read_value() for name, held in each.items()} for each in kept],
                tuple(numbers[keys[index]] for index in chosen),
                update,
            ),
            transport,
        )
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

    totals = list(gradients)
    sums = step.sum_without_gradient([gradients[i] for i in whole], watch)
    sums += step.replicas.sum_by(compress, [gradients[i] for i in compressed], watch)
    for index, total in zip(whole + compressed, sums, strict=True):
        totals[index] = total
    return totals


def _slots(optimizer: BaseOptimizer) -> dict[str, dict[str, tf.Variable]]:
    return vars(optimizer).get(_SLOTS, {})


def _check_momentum(
    optimizer: BaseOptimizer, compression: UpdateCompression | None, variables: Sequence[Any]
) -> None:
    if compression is None or not compression.has_momentum:
        return
    for name in ("momentum", "beta_1"):
        momentum = getattr(optimizer, name, None)
        if momentum:
            raise ValueError(
                f"An optimizer must have no momentum under {compression!r}, which has it, but "
                f"received {type(optimizer).__name__} with {name}={momentum!r}. Use "
                "keras.optimizers.SGD(rate), or tfdp.compression.ErrorFeedback and this optimizer."
            )
    for variable in variables:
        if variable.dtype != "float32" and not getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                f"Variables must be of float32 to get the momentum of {compression!r}, but "
                f"{variable.name!r} is of {variable.dtype}. Use a dtype policy with variables of "
                "float32, or tfdp.compression.ErrorFeedback and an optimizer with momentum."
            )


def _warn_if_idle(
    compression: UpdateCompression,
    variables: Sequence[Any],
    kept: Sequence[Mapping[str, Slot] | None],
) -> None:
    """Warns where a compression leaves all gradients whole, which nothing else shows."""
    # One with a momentum keeps something for what it sums whole, too.
    taken = (
        slots is not None and (RESIDUAL in slots or not compression.feeds_back) for slots in kept
    )
    if variables and not any(taken):
        largest = max(math.prod(variable.shape) for variable in variables)
        logging.getLogger("tfdp").warning(
            "`compression` must take a gradient to save bytes, but %r takes none of %s: all travel "
            "whole. Use variables of float32 and a `smallest` of at most %s, the elements of the "
            "largest; mend `exclude` or `rank`; or leave `compression` out.",
            compression,
            ", ".join(getattr(variable, "path", variable.name) for variable in variables),
            largest,
        )


# The methods that see the gradients before they are summed in the update.
_SEEN_BY = ("apply", "apply_gradients", "_backend_apply_gradients", "_filter_empty_gradients")


def _has_own_apply(optimizer: BaseOptimizer) -> bool:
    """Returns whether users' own code may see the gradients before the update."""
    for name in _SEEN_BY:
        owner = next(cls for cls in type(optimizer).__mro__ if name in vars(cls))
        if owner.__module__.partition(".")[0] not in ("keras", "tfdp"):
            return True
    return False


def _made(
    strategy: tf.distribute.Strategy, replicas: Replicas, variable: Any, name: str, slot: Slot
) -> tf.Variable:
    beside = variable.value if isinstance(variable, keras.Variable) else variable
    placed = replicas.summed_on_read() if slot.of_replica else contextlib.nullcontext()
    # In a loop of the user's own Keras builds the optimizer while the step is traced.
    with tf.init_scope(), strategy.extended.colocate_vars_with(beside), placed:
        return tf.Variable(slot.first, trainable=False, name=name)
