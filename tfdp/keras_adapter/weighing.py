"""Weights on what is differentiated, so that replicas' gradients add up to the whole batch's.

With `n_r` of the batch's `n` examples on replica `r`, a mean over the batch is the sum over
replicas of `n_r / n` times the mean over the share: its weight is the share's fraction. A sum over
the batch is the sum of the shares' sums: its weight is 1, and so is that of values per example,
which a tape adds up. What has nothing of the batch in it, such as a penalty on weights, is the same
everywhere: its weights are the fractions, which add up to 1.

Which of these a target is, is read from the traced program (`terms`), or said by the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.errors import GradientError
from tfdp.keras_adapter._keras import Variable
from tfdp.keras_adapter.layouts import Layouts
from tfdp.keras_adapter.origins import Origin, origins
from tfdp.keras_adapter.step import Share, Step
from tfdp.keras_adapter.terms import Kind, Term, Terms, UnknownTerm
from tfdp.keras_adapter.traced import Place, Walk

_OPTION = "`DataParallelStrategy(custom_loss=...)`"


def layouts_of(step: Step, walk: Walk) -> Layouts:
    """What finds where the examples lie in tensors of the step, which has a share."""
    assert step.share is not None
    return Layouts(walk, step.share.rows, step.share.check_rows)


def weighed(
    step: Step, target: Any, output_gradients: Any, variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What is to be differentiated in place of a tape's `target`.

    Args:
      step: The replica's, with a share.
      target: A tensor or a nest of them.
      output_gradients: As a tape takes them, or None.
      variables: With respect to which it is differentiated, among others.

    Returns:
      Tensors, and as many output gradients.

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
            parts = _parts(step, tf.convert_to_tensor(value), variables)
        if len(parts) > 1 and upstream is not None and upstream.shape.rank != 0:
            raise _error(step, "a sum of terms that weigh differently, with output gradients")
        for part, weight in parts:
            weight = tf.fill(tf.shape(part), tf.cast(weight, part.dtype))
            targets.append(part)
            weights.append(weight if upstream is None else weight * tf.cast(upstream, part.dtype))
    return targets, weights


def weight_of(step: Step, value: Any) -> tf.Tensor:
    """The weight of a replica's gradient that no call of `GradientTape.gradient` returned.

    Raises:
      GradientError: As `weighed`.
    """
    parts = _parts(step, value, ())
    if len(parts) > 1:
        raise _error(step, "a sum of terms that weigh differently")
    return parts[0][1]


def _parts(step: Step, value: Any, variables: Sequence[Any]) -> list[tuple[Any, tf.Tensor]]:
    share = step.share
    assert share is not None
    walk = Walk()
    finder = Terms(layouts_of(step, walk), walk, share.rows, step.num_replicas)
    try:
        terms = finder.of(Place(value))
    except (UnknownTerm, RecursionError) as unknown:
        if share.custom_loss is None:
            too_long = isinstance(unknown, RecursionError)
            raise _error(step, "too long a program" if too_long else str(unknown)) from None
        return [(value, share.fraction * (step.num_replicas if share.divides else 1))]
    weights = [_weight(step, share, term) for term in terms]
    if len(set(weights)) == 1:
        return [(value, _number(share, weights[0]))]
    parts = []
    for term, weight in zip(terms, weights, strict=True):
        factors = term.factors
        if factors is None or _depends(factors, variables):
            raise _error(step, "a sum of terms that weigh differently")
        total = _number(share, weight)
        for factor in factors:
            total = factor.times(total)
        parts.append((term.value, total))
    return parts


def _weight(step: Step, share: Share, term: Term) -> float:
    """A term's weight, over the share's fraction; 0 for a weight of 1."""
    if term.kind is Kind.SUM:
        return 0.0
    unsaid = share.custom_loss is None and share.count_was_read
    divided = term.divided and (share.divides or unsaid)
    if term.kind is not Kind.LOSS and share.divides:
        divided = True
    if unsaid and term.kind is Kind.MEAN and not divided:
        raise GradientError(
            "The step asks for `num_replicas_in_sync`, but what it differentiates is not seen to "
            f"be divided by that number, and its gradient depends on it. Say it in {_OPTION}: "
            '"mean" if the step differentiates means, as on one device, "divided" if it divides '
            "them by the number of replicas."
        )
    return float(step.num_replicas) if divided else 1.0


def _number(share: Share, weight: float) -> tf.Tensor:
    if weight == 0.0:
        return tf.cast(share.examples > 0, share.fraction.dtype)
    return share.fraction * weight


def _depends(factors: Sequence[Any], variables: Sequence[Any]) -> bool:
    tensors = [factor.value for factor in factors if tf.is_tensor(factor.value)]
    return bool(origins(tensors, apart=variables) & Origin.DATA)


def _error(step: Step, found: str) -> GradientError:
    return GradientError(
        "What a step of your own differentiates must be a loss of Keras, or a mean or a sum over "
        f"the examples of the batch, but replica {step.rank} found {found}. Use such a mean, bring "
        "the whole batch together with `tfdp.whole_batch`, or say "
        f'what it is in {_OPTION}: "mean" takes it for a mean over the examples of each '
        'replica, "divided" for such a mean divided by the number of replicas.'
    )
