"""The state of a compression of updates, for an optimizer and its variables."""

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.replicas import Replicas, replicas_of
from tfdp.compression import RESIDUAL, Slot, UpdateCompression
from tfdp.compression.exchange import exchange_of
from tfdp.keras._keras import (
    BaseOptimizer,
    key_of_variable,
    strategy_of_optimizer,
    variables_of_optimizer,
)
from tfdp.keras.nested_optimizers import innermost

# The attribute of an optimizer: by the key of each variable that is compressed its slots by name.
# The attributes of an optimizer are where `tfdp.callbacks.checkpoint` finds variables that Keras
# does not list; in Keras' own list they would make files of the model unlike those of one device.
_SLOTS = "tfdp_compression_slots"


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


def slots_of(optimizer: BaseOptimizer) -> dict[str, dict[str, tf.Variable]]:
    """Returns the slots of each variable that is compressed, by its key and their names."""
    return vars(optimizer).get(_SLOTS, {})


def check_momentum_of(optimizer: BaseOptimizer, variables: Sequence[Any]) -> None:
    """Raises ValueError if compression and optimizer have momentum, or it cannot be kept."""
    compression = exchange_of(strategy_of_optimizer(optimizer)).update_compression
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


def _made(
    strategy: tf.distribute.Strategy, replicas: Replicas, variable: Any, name: str, slot: Slot
) -> tf.Variable:
    placed = replicas.summed_on_read() if slot.of_replica else contextlib.nullcontext()
    # In a loop of the user's own Keras builds the optimizer while the step is traced.
    with tf.init_scope(), strategy.extended.colocate_vars_with(tensorflows(variable)), placed:
        return tf.Variable(slot.first, trainable=False, name=name)
