"""Keras' losses, with the numerators and denominators of the global batch.

One device divides N, a sum of weighted values, by D, a count or a sum of weights (1 for a sum).
Numerators N_r and denominators D_r of the replicas are summed apart: an average of the quotients
N_r / D_r is another number where masks, weights or lengths make the D_r differ. Where D is a count,
a replica's term of the gradient is grad(N_r) / D; where it is a sum of weights, which may depend on
variables, it is (grad(N_r) - N / D grad(D_r)) / D.

A count is known without asking where the loss has equally many values for each example: then it is
that many times the number of examples in the batch, of which each replica knows its fraction f_r.
The number of entries that a mask leaves in, and a sum of weights, must be asked for.

A loss has one of two values:

- In Keras' own step nobody reads it before the step ends. There it is a number m_r such that the
  sum of f_r m_r over replicas is N / D: as the mean over the share's examples, N_r / D_r, if D is a
  known count. The tape weighs what it is given by f_r, and the metrics at the end of the step hold
  the sum.
- In a step of the user's own it is N / D, on every replica, with the replica's term of the gradient
  (`_global_value`). No gradient waits for the sum of the N_r.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import (
    MASKS_COUNT_WHOLE,
    CompileLoss,
    TensorFlowTrainer,
    flatten_layers,
    losses,
    own_losses,
)
from tfdp.keras_adapter.losses import coupling, scalars
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step, at_least_float32, current
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import layouts_of
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.walk import Place, Walk

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@hook(losses.Loss, "__call__")
def call(
    original: Callable[..., Any], self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Notes which loss is evaluated, so that messages can name it, and marks its values."""
    step = current()
    if step is None or step.share is None:
        return original(self, y_true, y_pred, sample_weight)
    # A class of the user's own may do anything with what this returns.
    plain = type(self).__call__ is losses.Loss.__call__
    is_summand = step.is_summand and step.loss is None and plain
    with _setting(step, loss=self, is_summand=is_summand):
        values = original(self, y_true, y_pred, sample_weight)
        coupling.mark_rows(step, y_pred, values)
        return values


@hook(CompileLoss, "call")
def call_compiled(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Notes that the values of losses are added up and, in a step of Keras' own, not read."""
    step = current()
    if step is None or not step.of_keras:
        return original(self, *args, **kwargs)
    with _setting(step, is_summand=True):
        return original(self, *args, **kwargs)


@hook(losses, "reduce_weighted_values")
def reduce_weighted_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Weighs values of the whole batch by its weights, and a scalar by the weights' reduction."""
    step = current()
    weighted = sample_weight is not None or mask is not None
    if step is None or step.share is None or not weighted:
        return original(values, sample_weight, mask, reduction, dtype)
    values = tf.cast(values, dtype or values.dtype)
    if values.shape.rank != 0:
        is_whole = coupling.is_of_whole_batch(step, values)
        if is_whole:
            sample_weight = coupling.weights_of_whole_batch(step, sample_weight)
            mask = coupling.weights_of_whole_batch(step, mask)
        is_summand = step.is_summand and not is_whole  # the whole batch's loss is no replica's term
        with _setting(step, is_masked=mask is not None, is_summand=is_summand):
            return original(values, sample_weight, mask, reduction, dtype)
    with _setting(step, is_summand=False):  # the weight is a factor
        weight = original(tf.ones([], values.dtype), sample_weight, mask, reduction, dtype)
    return scalars.as_mean(step, values) * weight


@hook(losses, "reduce_values")
def reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str | None = "sum_over_batch_size",
) -> Any:
    """Returns the loss of the global batch, from this replica's `values`."""
    step = current()
    if step is None or step.share is None:
        return original(values, sample_weight, reduction)
    if values.shape.rank == 0:
        return scalars.as_mean(step, values)
    if coupling.is_of_whole_batch(step, values):
        return original(values, sample_weight, reduction)
    coupling.check(step, values)
    if reduction in (None, "none"):
        return values
    weighted = reduction == "mean_with_sample_weight" and sample_weight is not None
    if step.compiling:
        return _reduce_in_xla(step, values, reduction, weighted)
    is_mean = reduction in _MEANS
    if step.is_summand and not weighted and (step.is_masked or _is_known(step, values, is_mean)):
        return scalars.selected_mean(step.share, _own_mean(step.share, values, reduction))
    dtype = at_least_float32(values.dtype)
    numerator = tf.reduce_sum(values)
    divisor = tf.reduce_sum(sample_weight) if weighted else tf.size(values)
    if not weighted and _is_known(step, values, is_mean):
        (total,) = _sums(step, [numerator], dtype)
        total_divisor = tf.cast(_entries(step.share, values), dtype)
    else:
        total, total_divisor = _sums(step, [numerator, divisor], dtype)
    scale = tf.ones([], dtype)
    if is_mean:
        scale = tf.math.divide_no_nan(scale, total_divisor)
    value = total * scale
    if weighted:
        # Weights may depend on variables: the gradient of N / D is (dN - (N / D) dD) / D.
        numerator -= tf.cast(value, numerator.dtype) * tf.cast(divisor, numerator.dtype)
    return _global_value(step, numerator, value, scale)


@hook(losses, "apply_mask")
def apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: str | None
) -> Any:
    """Returns a mask as weights that add up to the number of entries in the global batch.

    The reduction divides by that number. Each valid entry weighs entries / valid entries, both of
    the global batch, so that the result is the mean over the valid entries. Where the reduction
    divides by the replica's own number of entries, it weighs these / valid entries, and what weighs
    the share's fraction later is divided by that.
    """
    step = current()
    if step is None or step.share is None:
        return original(sample_weight, mask, dtype, reduction)
    if mask is None or reduction not in ("mean", "sum_over_batch_size"):
        return original(sample_weight, mask, dtype, reduction)
    precise = at_least_float32(dtype)
    _forbid_in_xla(step, "a masked loss")
    valid = tf.cast(mask, precise)
    size, number = tf.size(valid), tf.reduce_sum(valid)
    if step.is_summand:
        # `_own_mean` divides by the replica's own number of entries, which cancels this one.
        (total_valid,) = _sums(step, [number], precise)
        size = tf.math.divide_no_nan(tf.cast(size, precise), tf.cast(step.share.fraction, precise))
    else:
        size, total_valid = _sums(step, [size, number], precise)
    if MASKS_COUNT_WHOLE:
        valid = tf.cast(tf.cast(mask, tf.bool), precise)
    weight = valid * tf.math.divide_no_nan(size, total_valid)
    weight = tf.cast(weight, dtype)
    if sample_weight is None:
        return weight
    weight, sample_weight = losses.squeeze_or_expand_to_same_rank(
        weight, tf.cast(sample_weight, dtype)
    )
    return sample_weight * weight


@hook(losses, "scale_loss_for_distribution")
def scale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns the loss undivided: it is that of the global batch already."""
    step = current()
    return value if step is not None and step.share is not None else original(value)


@hook(losses, "unscale_loss_for_distribution")
def unscale_loss_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Returns the loss unmultiplied: it was not divided, see `scale_loss_for_distribution`."""
    step = current()
    return value if step is not None and step.share is not None else original(value)


@hook(TensorFlowTrainer, "_aggregate_additional_loss")
def aggregate_additional_loss(
    original: Callable[..., Any], self: TensorFlowTrainer, loss: Any
) -> Any:
    """Turns a loss from `add_loss` or a regularizer into a mean over the share's examples."""
    step = current()
    if step is None or step.share is None:
        return original(self, loss)

    def holders() -> list[Any]:
        return [
            layer
            for layer in flatten_layers(self)
            if any(loss is given for given in own_losses(layer))
        ]

    return scalars.as_mean(step, original(self, loss), holders)


@hook(tf.nn, "compute_average_loss")
def compute_average_loss(
    original: Callable[..., Any],
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> Any:
    """Averages over the replica's examples, as on one device, where no batch size is given."""
    share = _share_that_divides_nothing()
    if share is not None and global_batch_size is None:
        per_example_loss = tf.convert_to_tensor(per_example_loss)
        global_batch_size = tf.shape(per_example_loss)[0]
    return original(per_example_loss, sample_weight, global_batch_size)


@hook(tf.nn, "scale_regularization_loss")
def scale_regularization_loss(original: Callable[..., Any], regularization_loss: Any) -> Any:
    """Sums a regularization loss and does not divide it, as on one device."""
    if _share_that_divides_nothing() is None:
        return original(regularization_loss)
    return tf.reduce_sum(regularization_loss)


def _share_that_divides_nothing() -> Share | None:
    step = current()
    return None if step is None or step.share is None or step.share.divides else step.share


@contextlib.contextmanager
def _setting(step: Step, **attributes: Any) -> Iterator[None]:
    """Sets attributes of the step within the context."""
    outer = {name: getattr(step, name) for name in attributes}
    try:
        vars(step).update(attributes)
        yield
    finally:
        vars(step).update(outer)


def _sums(step: Step, values: list[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
    """Returns the sums of scalars over replicas, made in one collective, as constants.

    `_global_value` gives a loss its gradient, for which a replica needs its own numerator and
    divisor alone, so the backward pass has no collective for the loss.
    """
    packed = tf.stack([tf.stop_gradient(tf.cast(value, dtype)) for value in values])
    assert step.share is not None
    packed = step.share.counted(packed)
    (summed,) = step.sum([packed])
    return tf.unstack(summed, num=len(values))


def _global_value(
    step: Step, numerator: tf.Tensor, value: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """Returns the global loss `value`, with the replica's term of the global gradient.

    The term is `scale` (1 / D, or 1 for a sum) times the gradient of the replica's `numerator`. The
    tape multiplies what it is given by a weight, which for a loss of Keras is that of a mean, the
    share's fraction (`weighing.weighed`); one weight then serves a loss plus the step's own means.
    `backward` divides by the fraction, which undoes it: fraction * (scale / fraction) = scale.
    """
    share = step.share
    assert share is not None
    value = tf.cast(value, numerator.dtype)

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        # `upstream` holds the fraction as a factor. Without examples both it and the term are 0.
        factor = tf.math.divide_no_nan(scale, tf.cast(share.fraction, scale.dtype))
        return upstream * tf.cast(factor, upstream.dtype)

    @tf.custom_gradient
    def attach(numerator: tf.Tensor) -> Any:
        return tf.identity(value), backward

    result = attach(numerator)
    return mark(result, Mark.LOSS)


def _is_known(step: Step, values: tf.Tensor, is_mean: bool) -> bool:
    """Returns whether the number of values in the batch follows from that of its examples.

    It does if each example has equally many: the values are rows of the examples, and all other
    sizes are fixed. A sum needs no number.
    """
    if step.num_replicas == 1 or not is_mean:
        return True
    if not values.shape[1:].is_fully_defined():
        return False
    return layouts_of(step, Walk()).of(Place(values)) is Layout.ROWS


def _entries(share: Share, values: tf.Tensor) -> tf.Tensor:
    """Returns the number of values in the batch, if `_is_known`; int64."""
    _, _, rows, total = tf.unstack(tf.convert_to_tensor(share.place))
    return tf.size(values, tf.int64) // tf.maximum(rows, 1) * total


def _own_mean(share: Share, values: tf.Tensor, reduction: str) -> tf.Tensor:
    """Returns the replica's own loss, which weighs the share's fraction, n_r / n.

    With k values for each example a mean weighs N_r / (k n_r) * n_r / n = N_r / (k n), which is
    N_r / D. A sum is divided by the weight in advance: (N_r / (n_r / n)) * n_r / n = N_r.
    """
    dtype = at_least_float32(values.dtype)
    numerator = tf.reduce_sum(tf.cast(values, dtype))
    divisor = tf.cast(share.fraction if reduction == "sum" else tf.size(values), dtype)
    return tf.cast(tf.math.divide_no_nan(numerator, divisor), values.dtype)


def _reduce_in_xla(step: Step, values: tf.Tensor, reduction: str, weighted: bool) -> tf.Tensor:
    """Returns the replica's own loss: XLA has no collective on CPU to sum others with."""
    assert step.share is not None
    if weighted:
        _forbid_in_xla(step, "a loss with reduction 'mean_with_sample_weight'")
    return _own_mean(step.share, values, reduction)


def _forbid_in_xla(step: Step, what: str) -> None:
    if step.compiling:
        raise RuntimeError(
            f"Under `jit_compile=True` on CPU no layer can compute {what}: it needs sums over the "
            "replicas, and XLA has no collective there. Give the loss to `compile(loss=...)`, or "
            "use jit_compile=False."
        )
