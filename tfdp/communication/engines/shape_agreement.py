"""Comparison of shapes that only a running step knows; with other shapes replicas would hang."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.communication.engines.control_dependencies import run_independently

REMEDY = (
    "Values of different shapes have no sum: reduce or pad them first, or join their rows with "
    "`all_gather`. Where one replica alone knows a length, `tf.ensure_shape` says it on the others."
)
_MOST_AXES = 8  # the most that a tensor of unknown rank may have


def sizes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the shape as int32, filled up by -1 where the rank is unknown."""
    shape = tf.shape(tensor)
    if tensor.shape.rank is not None:
        return shape
    padded = tf.pad(shape, [[0, _MOST_AXES - tf.rank(tensor)]], constant_values=-1)
    return tf.ensure_shape(padded, [_MOST_AXES])


def check(call: str, ranks: Sequence[int], shapes: Sequence[tf.Tensor]) -> tf.Operation:
    """Raises when the step runs, unless all `ranks` call with the same shape.

    Args:
      call: The collective in words.
      ranks: The ranks that call it.
      shapes: For each rank the result of `sizes`.
    """
    with tf.device("CPU:0"):
        same = tf.reduce_all([tf.reduce_all(shape == shapes[0]) for shape in shapes])
        said: list[str | tf.Tensor] = [f"{call} must be given the same shape on every replica. "]
        for rank, shape in zip(ranks, shapes, strict=True):
            said += [f"On replica {rank} it has", shape]
        assertion = tf.raw_ops.Assert(condition=same, data=[*said, REMEDY], summarize=_MOST_AXES)
    # It must not wait for the collective.
    run_independently(assertion)
    return assertion
