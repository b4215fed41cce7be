"""Losses that are one number: a mean or a sum over the replica's examples, or free of them.

Each becomes a number m_r such that the sum of fraction_r * m_r over replicas is the whole batch's.
Means are such numbers, and so is what is free of the batch, for the fractions add up to 1. A sum
s_r becomes s_r / fraction_r. All of them are then weighed, logged and differentiated as means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.gradients.weighing import times_fraction
from tfdp.keras_adapter.losses.coupling import name_of, refuse_or_warn
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.terms import Kind, OverLengthTerm, Term, UnknownTerm, terms_of


def as_mean(step: Step, value: Any, find_holders: Callable[[], list[Any]] = list) -> tf.Tensor:
    """Turns a scalar loss into a mean over this replica's examples; zero where there are none.

    Args:
      step: The replica's step, with a share.
      value: The loss.
      find_holders: A function that finds the layers that gave the loss to `add_loss`.

    Raises:
      GradientError: A loss of Keras mixes examples.
    """
    share = step.share
    assert share is not None
    try:
        parts = (
            _parts_as_means(step, share, value)
            if step.num_replicas > 1
            else [_selected(share, value)]
        )
    except UnknownTerm as unknown:
        # Keras divides an activity regularizer's loss by the length of the batch: that is a mean.
        holders = find_holders()
        regularizes = any(layer.activity_regularizer is not None for layer in holders)
        if not (regularizes and isinstance(unknown, OverLengthTerm)):
            refuse_or_warn(step, name_of(step, holders), str(unknown))
        parts = [_selected(share, value)]
    return mark(parts[0] if len(parts) == 1 else tf.add_n(parts), Mark.MEAN)


def selected_mean(share: Share, mean: tf.Tensor) -> tf.Tensor:
    """Returns a mean over this replica's examples; zero, also as a gradient, without examples."""
    return mark(_selected(share, mean), Mark.MEAN)


def _parts_as_means(step: Step, share: Share, value: tf.Tensor) -> list[tf.Tensor]:
    terms = terms_of(step, value, checks=False)
    weights = [_times_fraction(step, share, term) for term in terms]
    if len(set(weights)) == 1:
        return [_weighed(share, _selected(share, value), weights[0])]
    parts = []
    for term, weight in zip(terms, weights, strict=True):
        if term.factors is None:
            raise UnknownTerm("a sum of terms that weigh differently")
        part = tf.cast(tf.reduce_sum(_selected(share, term.value)), value.dtype)
        for factor in term.factors:
            part = factor.times(part)
        parts.append(_weighed(share, part, weight))
    return parts


def _times_fraction(step: Step, share: Share, term: Term) -> float | None:
    # A loss of this kind means what it means on one device. It counts as divided by the number of
    # replicas only where the step has asked for that number: a penalty's rate may equal the inverse
    # by chance.
    if term.kind is Kind.SUM:
        return None
    divided = term.divided and share.count_was_read
    return times_fraction(step, dataclasses.replace(term, kind=Kind.LOSS, divided=divided))


def _weighed(share: Share, part: tf.Tensor, number: float | None) -> tf.Tensor:
    if number == 1.0:
        return part
    if number is None:
        return tf.math.divide_no_nan(part, tf.cast(share.fraction, part.dtype))
    return part * number


def _selected(share: Share, value: tf.Tensor) -> tf.Tensor:
    if not share.may_be_empty:
        return tf.identity(value)

    @tf.custom_gradient
    def selected(value: tf.Tensor) -> Any:
        return share.select(value), share.select

    return selected(value)
