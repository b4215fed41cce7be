"""Sums over replicas of the gradients of an update: before it, in it, whole, or each one's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.collectives import map_values
from tfdp.keras_adapter._keras import BaseOptimizer, key_of_variable
from tfdp.keras_adapter.gradients import (
    compressing,
    sharded_state,
    sharded_update,
)
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.training import step_recording
from tfdp.replicas import Value


def waiting(
    step: Step,
    optimizer: BaseOptimizer,
    variables: Sequence[Any],
    local: Sequence[int],
    values: list[Value | None],
) -> set[int]:
    """Returns the positions of gradients that are summed in the update, for they are compressed.

    Args:
      step: The replica's step.
      optimizer: The outermost optimizer.
      variables: The variables that it is to update.
      local: The positions of gradients that are the replica's own, not summed yet.
      values: The gradients. Of those that are compressed rows are replaced by a dense gradient.
    """
    if len(variables) != len(values) or step.replicas.exchange.update_compression is None:
        return set()
    compressed = compressing.deferred(step, optimizer, variables)
    for index in local:
        if compressed[index]:
            values[index] = compressing.made_dense(step, values[index], variables[index])
    compressing.check_momentum(step, variables, values, local)
    if any(compressed[index] and isinstance(values[index], tf.IndexedSlices) for index in local):
        step.warn_once(
            "compressed_rows",
            "Gradients of large tables (tf.IndexedSlices) are summed whole, without the "
            "strategy's `compression`. Give it a `largest_table` of at least their rows, or name "
            "the tables in its `exclude`, such as exclude=['bias$', 'embeddings$'], to keep no "
            "residuals for them.",
        )
    return {index for index in local if compressed[index] and compressing.can_wait(values[index])}


def summed(step: Step, grads: list[Value | None]) -> list[Value | None]:
    """Returns the sums of gradients; where there is none, there is none on any replica."""
    if all(grad is None for grad in grads):
        return grads
    with step_recording.watching_buckets() as watch:
        given = [grad for grad in grads if grad is not None]
        sums = iter(step.sum_without_gradient(given, watch, compress=True))
    return [None if grad is None else next(sums) for grad in grads]


def summed_in_update(
    step: Step, optimizer: BaseOptimizer, grads: list[Value | None]
) -> list[Value | None]:
    """Returns the sums of gradients that waited for the update; the others are sums already."""
    if step.replicas.exchange.update_compression is None:
        return summed(step, grads)
    variables = list(step.updated)
    keys = [key_of_variable(optimizer, variable) for variable in variables]
    wait = [
        index
        for index, key in enumerate(keys)
        if step.to_compress is None or key in step.to_compress
    ]
    with step_recording.watching_buckets() as watch:
        sums = compressing.summed(
            step, optimizer, [grads[i] for i in wait], [variables[i] for i in wait], watch
        )
    for index, total in zip(wait, sums, strict=True):
        grads[index] = total
    return grads


def parts(
    step: Step,
    optimizer: BaseOptimizer,
    grads: Sequence[Value | None],
    variables: Sequence[Any],
    local: Sequence[bool],
) -> list[Value | None]:
    """Returns the replica's parts of gradients' sums; `local` tells which are not summed yet."""
    cuts = sharded_state.cuts_of(step, optimizer, variables)
    terms = [index for index, is_local in enumerate(local) if is_local and grads[index] is not None]
    scattered = [i for i in terms if sharded_update.can_be_scattered(grads[i], cuts[i])]
    whole = [index for index in terms if index not in scattered]
    values = list(grads)
    for index, total in zip(whole, summed(step, [grads[i] for i in whole]), strict=True):
        values[index] = total
    return sharded_update.parts(step, values, cuts, scattered)


def clipped_parts(
    step: Step, optimizer: BaseOptimizer, grads: list[Value], are_parts: bool
) -> list[Value]:
    """Returns the replica's parts of gradients' sums, clipped by norms of the wholes.

    Args:
      step: The replica's step.
      optimizer: A sharded optimizer.
      grads: Its own terms, or its parts of the sums.
      are_parts: Whether they are parts of the sums.
    """
    cuts = sharded_state.cuts_of(step, optimizer, step.updated)
    if not are_parts:
        grads = parts(step, optimizer, grads, step.updated, [True] * len(grads))
    if step_recording.is_on():
        squares = sharded_update.square_norms(step, grads, cuts)
        step_recording.gradient_norm([tf.sqrt(tf.add_n(squares))])
    return sharded_update.clipped(step, optimizer, grads, cuts)


def of_first(step: Step, grad: Value | None) -> Value | None:
    """Returns the gradient on the first replica, zeros on the others."""
    if grad is None:
        return None

    def selected(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cond(step.of_first, lambda: tf.identity(tensor), lambda: tf.zeros_like(tensor))

    return map_values(selected, grad)
