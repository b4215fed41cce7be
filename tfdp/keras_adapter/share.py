"""A replica's share of the global batch, as the step that computes on it knows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf


@dataclasses.dataclass
class Share:
    """A replica's part of the global batch, in a step of Keras' trainer.

    Attributes:
      examples: Number of examples on this replica, a floating scalar.
      place_of: Returns `place`. It is a weak reference, since TensorFlow keeps gradient functions
        for ever, and with them everything that they refer to.
      fraction: `examples` over the number of examples in the global batch, a floating scalar; 0
        without examples. It is cast where it is used.
      rows: The number of rows; None where it is not known while the step is traced.
      may_be_empty: Whether this or another replica may be without examples.
      custom_loss: The strategy's `custom_loss`, which says what a step of the user's own
        differentiates.
      windows: Tells which gradients wait until an optimizer's accumulation window closes.
      count_was_read: Whether the step has asked for the number of replicas.
    """

    examples: tf.Tensor
    place_of: Callable[[], tf.Variable]
    fraction: tf.Tensor
    rows: int | None = None
    may_be_empty: bool = True
    custom_loss: str | None = None
    windows: Windows | None = None
    count_was_read: bool = False

    @property
    def place(self) -> tf.Variable:
        """The share's place in the batch: four int64 numbers in a variable of the strategy.

        They are the number of examples on this replica, on all earlier replicas, the number of rows
        that this replica computes on (a stand-in's if it has no example), and the number of
        examples in the batch. It is a variable because a `tf.function` inside the step may outlive
        the step, and so must hold none of its tensors.
        """
        return self.place_of()

    @property
    def divides(self) -> bool:
        """Whether the user says that the step divides by the number of replicas."""
        return self.custom_loss == "divided"

    def check_rows(self, tensor: tf.Tensor, like: tf.Tensor | None) -> None:
        """Adds a check that `tensor` has as many rows as `like`; as the share if `like` is None."""
        tf.debugging.assert_equal(
            tf.shape(tensor, tf.int64)[0],
            tf.convert_to_tensor(self.place)[2] if like is None else tf.shape(like, tf.int64)[0],
            "What a step of your own differentiates must be computed from all examples of the "
            "batch, but a function was given, or a layer gave, fewer or more rows. Choose among "
            "those of the whole batch, `x = tfdp.whole_batch(x)`, or give `custom_loss` to the "
            "strategy.",
        )

    @property
    def has_examples(self) -> tf.Tensor:
        """Whether this replica has examples, a boolean scalar; usable in any graph of the step."""
        return tf.convert_to_tensor(self.place)[0] > 0

    def counted(self, tensor: Any) -> Any:
        """Returns `tensor`, or zeros if this replica has no examples; for small tensors."""
        if not self.may_be_empty:
            return tensor
        return tf.where(self.has_examples, tensor, tf.zeros_like(tensor))

    def select(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns `tensor`, or zeros if a stand-in made it, since it may be NaN then."""
        return self.scaled(tensor, None)

    def scaled(self, tensor: tf.Tensor, factor: tf.Tensor | None) -> tf.Tensor:
        """Returns `tensor * factor`, or zeros if this replica has no examples."""
        if not self.may_be_empty:
            return tensor if factor is None else tensor * tf.cast(factor, tensor.dtype)
        return tf.cond(
            self.examples > 0,
            lambda: (
                tf.identity(tensor) if factor is None else tensor * tf.cast(factor, tensor.dtype)
            ),
            lambda: tf.zeros_like(tensor),
        )


class Windows(Protocol):
    """The test which gradients are summed only when an optimizer's accumulation window closes."""

    @property
    def keras_own_step(self) -> bool:
        """Whether the step is Keras' own, which gives gradients to the optimizer untouched."""

    def is_for_update(self, variables: Sequence[Any]) -> bool:
        """Returns whether gradients with respect to `variables` are those of Keras' own update."""

    def wait(self, variables: Sequence[Any]) -> bool:
        """Returns whether the gradients with respect to `variables` wait."""
