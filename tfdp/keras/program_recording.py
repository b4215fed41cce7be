"""The recording of steps of Keras that are one program: of its trace, and around its calls.

What a program's collectives send is recorded by watches in the program: see
`strategy.program_recording`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.base import recording
from tfdp.communication.replicas import BatchShard, Value, of_replica


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
    if recorder is None:
        return
    rows = data.rows if isinstance(data, BatchShard) else data
    for index in range(len(recorder.buffers)):
        tap = recording.Tap(recorder, index)
        tap.add("steps", 1)
        own = tf.nest.map_structure(functools.partial(of_replica, index), rows)
        leaves = tf.nest.flatten(own, expand_composites=True)
        tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
        if isinstance(data, BatchShard):
            tap.add("examples", of_replica(index, data.place)[3])
        elif tensors:
            tap.add("examples", tf.shape(tensors[0])[0])
        if _knows_input(model):
            tap.add("input_seconds", tap.instant(tensors) - tap.beginning())


@contextlib.contextmanager
def meeting(recorder: recording.Recorder | None, own: tf.Tensor) -> Iterator[list[tf.Tensor]]:
    """Records, before a step, how long all local replicas wait for other ranks.

    Args:
      recorder: The model's recorder; None if nothing is to be recorded.
      own: What this rank tells.

    Yields:
      A list, to which the caller adds what all have told.
    """
    taps = (
        []
        if recorder is None
        else [recording.Tap(recorder, i) for i in range(len(recorder.buffers))]
    )
    arrived = [tap.instant([own]) for tap in taps]
    told = list[tf.Tensor]()
    yield told
    for tap, instant in zip(taps, arrived, strict=True):
        tap.add("meetings", 1)
        tap.add("meeting_seconds", tap.instant(told) - instant)


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
    return [_whole(gradient) if tf.is_tensor(gradient) else gradient for gradient in gradients]


def _knows_input(model: Any) -> bool:
    """Returns whether the wait for a batch can be measured in the step.

    With several steps per execution the next batch is asked for before the step begins, and eagerly
    before any operation of the step.
    """
    return model.steps_per_execution == 1 and not tf.executing_eagerly()


def _whole(gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient of the whole batch, not a replica's summand: its bits are asked for."""
    return tf.raw_ops.Bitcast(input=gradient, type=gradient.dtype)
