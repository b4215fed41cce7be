"""The recording of Keras' step, if a recorder is attached to the model: see `base.recording`.

What a program's collectives send is recorded by watches in the program: see
`strategy.programs.traffic_recording`.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.communication.collectives import indexed_slices
from tfdp.communication.replicas import BatchShard, Value, has_rows, of_replica, rows_of
from tfdp.optimizers.trust_ratio import square_norm


def traced(
    recorder: recording.Recorder | None, step_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a step that is traced once for all replicas, in which others may record.

    What the trace writes into the first replica's buffers, each replica writes into its own.
    """
    if recorder is None:
        return step_function

    @functools.wraps(step_function)
    def step(data: Any) -> Any:
        with recording.tapped(recording.Tap(recorder, 0)):
            return step_function(data)

    return step


def called(recorder: recording.Recorder | None, model: Any, data: Any) -> None:
    """Records a step that is one program, before it, and each local replica's wait for input.

    Args:
      recorder: The model's recorder; None if nothing is to be recorded.
      model: The model that is trained.
      data: The local replicas' shares, a `BatchShard`; or a whole batch.
    """
    rows = data.rows if isinstance(data, BatchShard) else data
    for index, tap in enumerate(recording.taps_of(recorder)):
        tap.add("steps", 1)
        own = tf.nest.map_structure(functools.partial(of_replica, index), rows)
        leaves = tf.nest.flatten(own)
        examples = next(filter(has_rows, leaves), None)
        if isinstance(data, BatchShard):
            tap.add("examples", of_replica(index, data.place)[3])
        elif examples is not None:
            tap.add("examples", rows_of(examples))
        # With several steps per execution the next batch is asked for before the step begins, and
        # eagerly before any operation of the step.
        if model.steps_per_execution == 1 and not tf.executing_eagerly():
            tensors = filter(tf.is_tensor, tf.nest.flatten(leaves, expand_composites=True))
            tap.add("input_seconds", tap.instant(list(tensors)) - tap.beginning())


def update(gradients: list[Value | None]) -> list[Value | None]:
    """Records an update by gradients, in a trace for all replicas.

    Returns:
      What is to be used in their place: if something records, dense ones are summed here, and not
      after they were scaled, as their norm needs the sums. They are sent once then.
    """
    tap = recording.current()
    if tap is None:
        return gradients
    tap.add("updates", 1)
    # The bits of a gradient are asked for: a partial one, a replica's, has not those of the sum.
    return [
        tf.raw_ops.Bitcast(input=each, type=each.dtype) if isinstance(each, tf.Tensor) else each
        for each in gradients
    ]


def updates(made: tf.Tensor) -> None:
    """Records the number of updates that replicas have made by themselves, a scalar."""
    tap = recording.current()
    if tap is not None:
        tap.add("updates", tf.cast(made, tf.float64))


def trust_ratios(variables: int) -> contextlib.AbstractContextManager[None]:
    """Returns a context that records the trust ratios of an update of so many variables."""
    tap = recording.current()
    return contextlib.nullcontext() if tap is None else tap.keeping_trust_ratios(variables)


def gradient_norm(gradients: Sequence[Value | None]) -> None:
    """Records the global norm of an update's gradients, if the step is a sample."""
    tap = recording.current()
    given = [gradient for gradient in gradients if gradient is not None]
    if tap is not None and given:
        tap.add_square_norm(functools.partial(_square_norm, given))


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
        tap.add(name, tap.if_sampled(functools.partial(_square_norm, tensors)))


def _square_norm(gradients: Sequence[Value]) -> tf.Tensor:
    """Returns the squared norm of gradients, a float64 scalar; repeated rows are added first."""
    dense = [
        indexed_slices.merged(each).values if isinstance(each, tf.IndexedSlices) else each
        for each in gradients
    ]
    return tf.add_n([tf.cast(square_norm(each), tf.float64) for each in dense])
