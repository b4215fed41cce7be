"""What `fit` looks at before it starts: the batch and the rate, and who reports the loss scale."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from tfdp.callbacks import LossScaleMonitor
from tfdp.optimizers.scaling import ScaledRate

_KERAS_BATCH_SIZE = 32  # of `fit` on arrays


def prepare(model: Any, arguments: dict[str, Any]) -> None:
    """Looks at the arguments of `fit`, and adds the loss scale to its logs.

    Args:
      model: What is to be trained, under a strategy of tfdp.
      arguments: Those of `fit`, by name; `callbacks` may be replaced.
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
        # First, so that the others find its numbers in the logs.
        arguments["callbacks"] = [LossScaleMonitor(), *given]


def _compare_batch_and_rate(model: Any, arguments: dict[str, Any]) -> None:
    strategy, optimizer = model.distribute_strategy, getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None or strategy.rank != 0:
        return
    rate = scaled_rate(optimizer)
    grown = strategy.products_of_replicas
    if rate is None and not grown:
        return
    batch = global_batch_size(arguments)
    if batch is None:
        return
    accumulated = optimizer.gradient_accumulation_steps or 1
    if rate is not None:
        if rate.batch != batch * accumulated:
            _warn(
                f"The learning rate was scaled for a batch of {rate.batch}, but an update has "
                f"{batch * accumulated} examples ({_mix(batch, accumulated)}). Use "
                f"`batch={batch * accumulated}` in `scale_learning_rate`, or another batch in "
                "`fit`."
            )
    elif batch in grown and not _sets_rates(arguments):
        count = strategy.num_replicas_in_sync
        base, now = grown[batch] * accumulated, batch * accumulated
        _warn(
            f"The global batch is {batch}, {grown[batch]} for each of {count} replicas, but the "
            "learning rate does not say that it grew with it: N replicas train exactly as one "
            "device with the global batch, and a rate that was tuned with a smaller batch is too "
            "low. Use `tfdp.optimizers.scale_learning_rate(rate, base_batch="
            f"{base}, batch={now})`, or `batch_size={grown[batch]}`."
        )


def scaled_rate(optimizer: Any) -> ScaledRate | None:
    """What `scale_learning_rate` made the optimizer's rate or schedule from, if it still holds."""
    found = _find_scaled(optimizer._learning_rate)
    if found is not None:
        return found
    given = getattr(optimizer, "_tfdp_scaled_rate", None)
    if given is None or abs(float(optimizer.learning_rate) - given) > 1e-6 * given:
        return None  # changed since
    return given


def note_scaled_rate(optimizer: Any, learning_rate: Any) -> None:
    """Keeps what the optimizer's variable forgets: the batch that its rate is meant for."""
    if isinstance(learning_rate, ScaledRate):
        optimizer._tfdp_scaled_rate = learning_rate


def global_batch_size(arguments: dict[str, Any]) -> int | None:
    """The number of examples of a step, from the arguments of `fit`; None where it is not known.

    It is not of a dataset that is batched without `drop_remainder` and mapped after that.
    """
    data = arguments.get("x")
    if isinstance(data, tf.data.Dataset):
        declared = next(iter(tf.nest.flatten(data.element_spec))).shape
        if declared.rank and declared[0] is not None:
            return declared[0]
        variant = tf.data.experimental.to_variant(data)
        size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
        return size if size > 0 else None
    leaves = tf.nest.flatten(data)
    are_arrays = bool(leaves) and all(hasattr(leaf, "__array__") for leaf in leaves)
    return (arguments.get("batch_size") or _KERAS_BATCH_SIZE) if are_arrays else None


def _find_scaled(schedule: Any) -> ScaledRate | None:
    if isinstance(schedule, ScaledRate):
        return schedule
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        found = filter(None, map(_find_scaled, vars(schedule).values()))
        return next(found, None)
    return None


def _sets_rates(arguments: dict[str, Any]) -> bool:
    """Whether a callback sets the rate, which then is not the optimizer's own."""
    callbacks = arguments.get("callbacks") or []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    kind = keras.callbacks.LearningRateScheduler
    return any(isinstance(callback, kind) for callback in tf.nest.flatten(callbacks))


def _mix(batch: int, accumulated: int) -> str:
    return f"a global batch of {batch}" + (
        f", accumulated {accumulated} times" if accumulated > 1 else ""
    )


def _warn(text: str) -> None:
    logging.getLogger("tfdp").warning(text)
