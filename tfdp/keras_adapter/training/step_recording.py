"""What Keras' step records, where a recorder is attached to the model: see `tfdp.recording`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp import recording
from tfdp.collectives import slices
from tfdp.optimizers.trust_ratio import square_norm
from tfdp.replicas import Trace, Value


@contextlib.contextmanager
def step(
    recorder: recording.Recorder | None, trace: Trace, model: Any, data: Any
) -> Iterator[None]:
    """One replica's step: its input, and within it whatever else records.

    Args:
      recorder: None where nothing is to be recorded.
      trace: Whose step it is: each has a buffer on its device.
      model: What is trained.
      data: The replica's share.
    """
    if recorder is None:
        yield
        return
    tap = recording.Tap(recorder, trace.index)
    tap.add("steps", 1)
    if model.steps_per_execution == 1 and not tf.executing_eagerly():
        # Within a loop the next batch is asked for before the step begins, eagerly before it all.
        leaves = tf.nest.flatten(data, expand_composites=True)
        ready = tap.instant([leaf for leaf in leaves if tf.is_tensor(leaf)])
        tap.add("input_seconds", ready - tap.beginning())
    with recording.tapped(tap):
        yield


def examples(total: tf.Tensor) -> None:
    """Records how many examples the step has on all replicas, a scalar."""
    tap = recording.current()
    if tap is not None:
        tap.add("examples", total)


@contextlib.contextmanager
def watching_buckets() -> Iterator[recording.BucketWatch | None]:
    """Records the sum of the gradients that is made within."""
    tap = recording.current()
    watch = None if tap is None else recording.BucketWatch(tap)
    yield watch
    if watch is not None:
        watch.finish()


def trust_ratios(variables: int) -> contextlib.AbstractContextManager[None]:
    """Records the trust ratios of the update of so many variables that is made within."""
    tap = recording.current()
    return contextlib.nullcontext() if tap is None else tap.keeping_trust_ratios(variables)


def gradient_norm(gradients: Sequence[Value | None]) -> None:
    """Records the global norm of an update, if the step is a sample."""
    tap = recording.current()
    given = [gradient for gradient in gradients if gradient is not None]
    if tap is None or not given:
        return

    def square_norm() -> tf.Tensor:
        return tf.add_n([_square_norm(gradient) for gradient in given])

    tap.add_square_norm(square_norm)


def _square_norm(gradient: Value) -> tf.Tensor:
    """A float64 scalar. Rows that occur more than once are one row of the gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient = slices.merged(gradient).values
    return tf.cast(square_norm(gradient), tf.float64)
