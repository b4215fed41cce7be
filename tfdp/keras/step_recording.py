"""The recording of Keras' step, if a recorder is attached to the model: see `base.recording`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.base import recording
from tfdp.communication.collectives import slices
from tfdp.communication.replicas import Value
from tfdp.optimizers.trust_ratio import square_norm


@contextlib.contextmanager
def watching_buckets(
    of_update: bool = True, timed: bool = True
) -> Iterator[recording.BucketWatch | None]:
    """Records the buckets of the gradients' sum that is made within the context.

    Args:
      of_update: Whether the sum counts as an update.
      timed: Whether the step waits for the sum, and how long is recorded.

    Yields:
      The watch to be told of the buckets; None if nothing is recorded.
    """
    tap = recording.current()
    watch = None if tap is None else recording.BucketWatch(tap, timed)
    yield watch
    if watch is not None:
        watch.finish(of_update)


def updates(made: tf.Tensor) -> None:
    """Records the number of updates that replicas have made by themselves, a scalar."""
    tap = recording.current()
    if tap is not None:
        tap.add("updates", tf.cast(made, tf.float64))


def is_on() -> bool:
    """Returns whether the step that is traced is recorded."""
    return recording.current() is not None


def trust_ratios(variables: int) -> contextlib.AbstractContextManager[None]:
    """Returns a context that records the trust ratios of an update of so many variables."""
    tap = recording.current()
    return contextlib.nullcontext() if tap is None else tap.keeping_trust_ratios(variables)


def gradient_norm(gradients: Sequence[Value | None]) -> None:
    """Records the global norm of an update's gradients, if the step is a sample."""
    tap = recording.current()
    given = [gradient for gradient in gradients if gradient is not None]
    if tap is None or not given:
        return

    def square_norm() -> tf.Tensor:
        return tf.add_n([_square_norm(gradient) for gradient in given])

    tap.add_square_norm(square_norm)


def compression_error(lost: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> None:
    """Records the norms of a replica's own gradients and of what compression has lost of them.

    Args:
      lost: What will come back in the next update, or never.
      gradients: The gradients, before what was lost earlier is added.
    """
    tap = recording.current()
    if tap is None:
        return
    for name, tensors in (("square_errors", lost), ("square_gradients", gradients)):
        norms = functools.partial(_sum_of_square_norms, tensors)
        tap.add(name, tap.if_sampled(norms))


def _sum_of_square_norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([_square_norm(tensor) for tensor in tensors])


def _square_norm(gradient: Value) -> tf.Tensor:
    """Returns the squared norm of a gradient, a float64 scalar; repeated rows are added first."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = slices.merged(gradient).values
    return tf.cast(square_norm(gradient), tf.float64)
