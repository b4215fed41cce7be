"""Weights on what is differentiated, so that replicas' gradients add up to the whole batch's.

Let replica r have n_r of the batch's n examples.

- A mean over the batch is the sum over replicas of n_r / n times the mean over the share. Its
  weight is the share's fraction, n_r / n.
- A sum over the batch is the sum of the shares' sums. Its weight is 1, as is the weight of values
  for each example, which a tape adds up.
- What has nothing of the batch in it, such as a penalty on weights, is the same on every replica.
  It must count once, and the fractions add up to 1: its weight is the fraction, too.

The weight stands at the target, as an output gradient, and not at the resulting gradients. A
backward pass through an `all_gather` adds up what comes from several replicas' targets, and each
of these must bring its own replica's weight.

The traced program shows which kind a target is (`terms`), or else the user says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.keras_adapter._keras import Variable
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step, knows_replica_count
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.terms import Kind, Term, UnknownTerm, terms_of

_OPTION = "`DataParallelStrategy(custom_loss=...)`"
_CHOICE = (
    '"mean" if the step differentiates means, as on one device, "divided" if it divides them by '
    "the number of replicas"
)


def weighed(
    step: Step, target: Any, output_gradients: Any, variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns what to differentiate in place of a tape's `target`, with its weights.

    Args:
      step: The replica's step, with a share.
      target: A tensor or a nest of tensors.
      output_gradients: Output gradients as a tape takes them, or None.
      variables: The variables among the sources. Factors that depend on them cannot be taken out
        of a term.

    Returns:
      Tensors, and as many output gradients, which hold the weights.

    Raises:
      GradientError: It cannot be told how a target depends on the batch.
    """
    targets: list[Any] = []
    weights: list[Any] = []
    flat = tf.nest.flatten(target)
    given = [None] * len(flat) if output_gradients is None else tf.nest.flatten(output_gradients)
    for value, upstream in zip(flat, given, strict=True):
        if isinstance(value, (tf.Variable, tf.distribute.DistributedValues, Variable)):
            assert step.share is not None
            parts = [(value, step.share.fraction)]
        else:
            parts = _weighed_parts(step, tf.convert_to_tensor(value), variables)
        if len(parts) > 1 and upstream is not None and upstream.shape.rank != 0:
            raise _error(step, "a sum of terms that weigh differently, with output gradients")
        for part, weight in parts:
            weight = tf.fill(tf.shape(part), tf.cast(weight, part.dtype))
            targets.append(part)
            weights.append(weight if upstream is None else weight * tf.cast(upstream, part.dtype))
    return targets, weights


def weight_of(step: Step, value: Any) -> tf.Tensor:
    """Returns the weight of a gradient that did not come from `GradientTape.gradient`.

    Raises:
      GradientError: It cannot be told how the gradient depends on the batch.
    """
    parts = _weighed_parts(step, value, ())
    if len(parts) > 1:
        raise _error(step, "a sum of terms that weigh differently")
    return parts[0][1]


def times_fraction(step: Step, term: Term) -> float | None:
    """Returns a term's weight as a multiple of the share's fraction; None for a weight of 1.

    The multiple is 1. It is the number of replicas for a term that the step, as is seen or as the
    user says, divides by that number: the two cancel.

    Raises:
      GradientError: The step asks for the number of replicas, and it cannot be told whether the
        term is divided by it.
    """
    share = step.share
    assert share is not None
    if term.kind is Kind.SUM:
        return None
    if share.divides:
        return float(step.num_replicas) if term.divided or term.kind is not Kind.LOSS else 1.0
    if share.custom_loss is not None or not (term.divided or term.kind is Kind.MEAN):
        return 1.0
    if share.count_was_read and term.is_quotient:
        return float(step.num_replicas)
    if share.count_was_read:
        found = "multiplied by its inverse" if term.divided else "not seen to be divided by it"
        raise GradientError(
            "Where a step asks for `num_replicas_in_sync` it must be said whether what it "
            "differentiates is divided by that number, for a constant does not tell where it comes "
            f"from, but found a term that is {found}. Say it in {_OPTION}: {_CHOICE}. A sum over "
            "the examples divided by the size of the global batch, "
            "`tf.nn.compute_average_loss`, and a mean divided by the number itself need neither."
        )
    if term.divided and knows_replica_count(step.strategy):
        step.warn_once(
            "a factor",
            "A step of your own differentiates a mean that is multiplied by 1/%d, which is taken "
            "for a factor as on one device. If it divides by the number of replicas, the gradient "
            "is too small by that number. Say in %s what it is: %s.",
            step.num_replicas, _OPTION, _CHOICE,
        )  # fmt: skip
    return 1.0


def _weighed_parts(step: Step, value: Any, variables: Sequence[Any]) -> list[tuple[Any, tf.Tensor]]:
    share = step.share
    assert share is not None
    try:
        terms = terms_of(step, value)
    except UnknownTerm as unknown:
        if share.custom_loss is None:
            raise _error(step, str(unknown)) from None
        return [(value, share.fraction * (step.num_replicas if share.divides else 1))]
    weights = [times_fraction(step, term) for term in terms]
    if len(set(weights)) == 1:
        return [(value, _weight(share, weights[0]))]
    parts = []
    for term, weight in zip(terms, weights, strict=True):
        factors = term.factors
        if factors is None or _depends(factors, variables):
            raise _error(step, "a sum of terms that weigh differently")
        total = _weight(share, weight)
        for factor in factors:
            total = factor.times(total)
        parts.append((term.value, total))
    return parts


def _weight(share: Share, number: float | None) -> tf.Tensor:
    if number is None:  # a sum weighs 1, but a stand-in's 0
        return tf.cast(share.examples > 0, share.fraction.dtype)
    return share.fraction * number


def _depends(factors: Sequence[Any], variables: Sequence[Any]) -> bool:
    tensors = [factor.value for factor in factors if tf.is_tensor(factor.value)]
    return bool(origins(tensors, apart=variables) & Origin.DATA)


def _error(step: Step, found: str) -> GradientError:
    return GradientError(
        "What a step of your own differentiates must be a loss of Keras, or a mean or a sum over "
        f"the examples of the batch, but {step.trace.name} found {found}. Use such a mean, bring "
        "the whole batch together with `tfdp.whole_batch`, or say "
        f'what it is in {_OPTION}: "mean" takes it for a mean over the examples of each '
        'replica, "divided" for such a mean divided by the number of replicas.'
    )
