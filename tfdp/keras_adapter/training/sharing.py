"""What a replica knows of its part of the batch while it computes on it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.random import draws
from tfdp.keras_adapter.step import Share, Step, Windows
from tfdp.keras_adapter.tracing.provenance import Mark, mark
from tfdp.keras_adapter.tracing.walk import remembering
from tfdp.keras_adapter.training import cut


@contextlib.contextmanager
def sharing(
    step: Step, data: Any, custom_loss: str | None = None, windows: Windows | None = None
) -> Iterator[tuple[Any, tf.Tensor]]:
    """Makes the examples in `data` the replica's share of the batch.

    Args:
      step: The replica's.
      data: A `cut.Cut`, or a share of which nothing more is known.
      custom_loss: As `Share` has it.
      windows: As `Share` has them.

    Yields:
      The share's rows, and the number of examples in the batch.

    Raises:
      ValueError: As `draws.check`.
    """
    examples, before, total, computed, rows = cut.place(step, data)
    place = place_in_batch(step.strategy)
    numbers = tf.cast(tf.stack([examples, before, computed, total]), tf.int64)
    place.assign(numbers, read_value=False)
    certain = isinstance(data, cut.FullCut) or step.num_replicas == 1
    data = data.rows if isinstance(data, cut.Cut) else data
    single = rows == 1 and step.num_replicas > 1 and not tf.executing_eagerly()
    if single:
        data, rows = _of_any_length(data)
    fraction = tf.math.divide_no_nan(examples, total)
    share = Share(examples, weakref.ref(place), fraction, rows, not certain, custom_loss, windows)
    for leaf in tf.nest.flatten(data):
        mark(leaf, Mark.ROWS)
    for own in (examples, fraction):  # constants, where shapes are fixed
        mark(own, Mark.STATE)
    remembers = remembering() if tf.executing_eagerly() else contextlib.nullcontext()
    with step.sharing(share), remembers:
        try:
            yield data, total
        except (TypeError, ValueError) as error:
            if rows is None and single:
                error.add_note(_OF_ANY_LENGTH)
            raise
        draws.check(step)


_OF_ANY_LENGTH = (
    "Each replica has one example here, and is traced for any number of them, so that nothing of "
    "size 1 is taken for that: `x.shape[0]` is None. Use `tf.shape(x)[0]`, or give each replica "
    "two or more."
)


def _of_any_length(data: Any) -> tuple[Any, int | None]:
    """One example, traced as so many as a step may have; and how many, where that is still known.

    Else a size of 1 would be the number of the replica's examples, or that of what all have once.
    """
    leaves = tf.nest.flatten(data)
    if any(leaf is not None and not isinstance(leaf, tf.Tensor) for leaf in leaves):
        return data, 1

    def of_any_length(leaf: tf.Tensor | None) -> tf.Tensor | None:
        if leaf is None or not leaf.shape.rank:  # or an unknown one
            return leaf
        return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])

    return tf.nest.map_structure(of_any_length, data), None


def place_in_batch(strategy: Any) -> tf.Variable:
    """Each replica's `Share.place`, kept with the strategy as long as that lives."""
    state = strategy.adapter_state
    if state.place is None:
        with strategy.scope():
            state.place = tf.Variable(
                tf.zeros(4, tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
            )
    return state.place
