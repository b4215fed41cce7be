"""The share of the batch that a step of Keras' trainer computes on, set up around the step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.random import draws
from tfdp.keras_adapter.share import Share, Windows
from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.walk import remembering
from tfdp.keras_adapter.training import cut
from tfdp.replicas import Cut, FullCut


@contextlib.contextmanager
def sharing(
    step: Step,
    data: Any,
    custom_loss: str | None = None,
    windows: Windows | None = None,
    of_any_length: bool = False,
) -> Iterator[tuple[Any, tf.Tensor]]:
    """Makes the examples in `data` the replica's share of the batch within the context.

    Args:
      step: The replica's step.
      data: A `Cut`, or a share whose place in the batch is not known.
      custom_loss: The attribute of `Share`.
      windows: The attribute of `Share`.
      of_any_length: Whether tracing must not know how many examples the share has: see
        `_of_any_length`.

    Yields:
      The share's rows, and the number of examples in the batch.

    Raises:
      ValueError: The step used random numbers otherwise than they were drawn: see `draws.check`.
    """
    examples, before, total, computed, rows = cut.place(step, data)
    place = place_in_batch(step.strategy)
    numbers = tf.cast(tf.stack([examples, before, computed, total]), tf.int64)
    place.assign(numbers, read_value=False)
    certain = isinstance(data, FullCut) or step.num_replicas == 1
    data = data.rows if isinstance(data, Cut) else data
    hides = step.num_replicas > 1 and not tf.executing_eagerly() and (of_any_length or rows == 1)
    if hides and rows is not None:
        data, rows = _of_any_length(data, rows)
    fraction = tf.math.divide_no_nan(examples, total)
    share = Share(examples, weakref.ref(place), fraction, rows, not certain, custom_loss, windows)
    for leaf in tf.nest.flatten(data):
        mark(leaf, Mark.ROWS)
    for own in (examples, fraction):  # constants if shapes are fixed, but other on each replica
        mark(own, Mark.STATE)
    remembers = remembering() if tf.executing_eagerly() else contextlib.nullcontext()
    with step.sharing(share), remembers:
        try:
            yield data, total
        except (TypeError, ValueError) as error:
            if rows is None and hides:
                error.add_note(_OF_ANY_LENGTH)
            raise
        draws.check(step)


_OF_ANY_LENGTH = (
    "A replica's step is traced for any number of examples, for it has a share of the batch, whose "
    "number is not the batch's: `x.shape[0]` is None. Use `tf.shape(x)[0]`."
)


def _of_any_length(data: Any, rows: int) -> tuple[Any, int | None]:
    """Hides from tracing how many examples a share has: its tensors get an unknown number of rows.

    A number that is known would be ambiguous. What a step computes with it, such as a sum over 4
    examples divided by 4, or 8 random numbers, is meant for the batch; another 4 or 8 is not.

    Returns:
      The tensors, and None; the given data and `rows` if it holds sparse or ragged tensors.
    """
    leaves = tf.nest.flatten(data)
    if any(leaf is not None and not isinstance(leaf, tf.Tensor) for leaf in leaves):
        return data, rows

    def of_any_length(leaf: tf.Tensor | None) -> tf.Tensor | None:
        if leaf is None or not leaf.shape.rank:  # a scalar, or a tensor of unknown rank
            return leaf
        return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])

    return tf.nest.map_structure(of_any_length, data), None


def place_in_batch(strategy: Any) -> tf.Variable:
    """Returns the variable of `Share.place`, one for a strategy and made at the first call."""
    state = strategy.adapter_state
    if state.place is None:
        with strategy.scope():
            state.place = tf.Variable(
                tf.zeros(4, tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
            )
    return state.place
