"""The preparation of `fit`: compares the batch with the scaled rate, and logs the loss scale."""

import logging
import math
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks import LossScaleMonitor
from tfdp.data.feed import AbstractFeed
from tfdp.keras._keras import rate_of_optimizer
from tfdp.optimizers.learning_rate_scaling import ScaledRate

_KERAS_BATCH_SIZE = 32  # the default of `fit` on arrays

# The attribute of an optimizer with the scaled rate that it was given.
_GIVEN_RATE = "_tfdp_given_rate"


def prepare(model: Any, arguments: dict[str, Any]) -> None:
    """Warns of a learning rate that was scaled for another batch; adds the loss scale to the logs.

    Args:
      model: The model to be trained, under a strategy of tfdp.
      arguments: The arguments of `fit`, by name; `callbacks` may be replaced.
    """
    _report_loss_scale(model, arguments)
    _compare_batch_and_rate(model, arguments)


def _report_loss_scale(model: Any, arguments: dict[str, Any]) -> None:
    callbacks = arguments.get("callbacks")
    scales = isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer)
    if not scales or isinstance(callbacks, keras.callbacks.CallbackList):
        return
    given = tf.nest.flatten(callbacks) if callbacks else []
    if not any(isinstance(callback, LossScaleMonitor) for callback in given):
        # It comes first, so that the other callbacks find the scale in the logs.
        arguments["callbacks"] = [LossScaleMonitor(), *given]


def _compare_batch_and_rate(model: Any, arguments: dict[str, Any]) -> None:
    strategy, optimizer = model.distribute_strategy, getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None or strategy.rank != 0 or _sets_rates(arguments):
        return
    if hasattr(optimizer, "optimizers"):
        return  # a MultiOptimizer: each optimizer in it may have a rate that is right for its part
    rate = scaled_rate(optimizer)
    batch = None if rate is None else global_batch_size(arguments)
    if rate is None or batch is None:
        return
    accumulated = optimizer.gradient_accumulation_steps or 1
    now = batch * accumulated
    mix = f"a global batch of {batch}"
    if accumulated > 1:
        mix += f", accumulated {accumulated} times"
    said = (
        f"The learning rate was scaled for a batch of {rate.batch}, but an update has {now} "
        f"examples ({mix}). Use `batch={now}` in `scale_learning_rate`, or another batch in `fit`."
    )
    warned = strategy.adapter_state.warned_about
    if rate.batch != now and said not in warned:
        warned.add(said)
        logging.getLogger("tfdp").warning(said)


def scaled_rate(optimizer: Any) -> ScaledRate | None:
    """Returns the `ScaledRate` in an optimizer's rate or schedule; None if there is none now."""
    found = _find_scaled(rate_of_optimizer(optimizer))
    given: ScaledRate | None = vars(optimizer).get(_GIVEN_RATE)
    if found is not None or given is None:
        return found
    is_set_since = not math.isclose(
        float(optimizer.learning_rate), given, rel_tol=1e-6, abs_tol=1e-30
    )
    return None if is_set_since else given


def note_rate(optimizer: Any, learning_rate: Any) -> None:
    """Keeps the rate that an optimizer is given, since its variable forgets the batch it is for."""
    if isinstance(learning_rate, ScaledRate):
        vars(optimizer)[_GIVEN_RATE] = learning_rate  # `setattr` is Keras' own


def global_batch_size(arguments: dict[str, Any]) -> int | None:
    """Returns the number of examples in a step, from the arguments of `fit`; None if not known.

    It is not known for a dataset that is batched without `drop_remainder` and mapped afterwards.
    """
    try:
        return _batch_size_of(arguments.get("x"), arguments.get("batch_size"))
    except Exception:
        # Users may give anything to `fit`; Keras raises an error for what it cannot take.
        return None


def _batch_size_of(data: Any, batch_size: int | None) -> int | None:
    if isinstance(data, AbstractFeed):
        return data.global_batch_size
    if isinstance(data, tf.data.Dataset):
        declared = tf.nest.flatten(data.element_spec)[0].shape
        if declared.rank and declared[0] is not None:
            return declared[0]
        variant = tf.data.experimental.to_variant(data)
        size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
        return size if size > 0 else None
    leaves = tf.nest.flatten(data)
    if not leaves or not all(hasattr(leaf, "__array__") for leaf in leaves):
        return None
    return min(batch_size or _KERAS_BATCH_SIZE, len(leaves[0]))


def _find_scaled(rate: Any) -> ScaledRate | None:
    if isinstance(rate, ScaledRate):
        return rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = list(vars(rate).values())
    if isinstance(rate, (list, tuple)):
        return next(filter(None, map(_find_scaled, rate)), None)
    return None


def _sets_rates(arguments: dict[str, Any]) -> bool:
    """Returns whether a callback sets the rate, in place of the optimizer's own."""
    callbacks = arguments.get("callbacks") or []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    kind = keras.callbacks.LearningRateScheduler
    return any(isinstance(callback, kind) for callback in tf.nest.flatten(callbacks))
