"""A mean over the batch and its variance, from one sum."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, Sharded
from tfdp.partition.moment_patterns import Moments
from tfdp.partition.rules.registry import Step
from tfdp.partition.tensors import Tensor


def can_be_summed_at_once(step: Step, layout: Sharded) -> bool:
    """Returns whether moments are from one sum; float64 has no digits to spare for that."""
    is_of_replicas = step.program.num_replicas > 1 and not layout.is_fixed
    return is_of_replicas and step.inputs[0].dtype == tf.float32


def mean_of(
    step: Step,
    moments: Moments,
    layout: Sharded,
    axes: Sequence[int],
    count: Output,
) -> Output:
    """Returns the whole mean of the operation's operand x, and keeps the variance.

    1. Of its n entries of N each replica computes the mean m in float32, and of x - m, which is
       small, the mean d and the norm e.
    2. The replicas sum n/N (m + d, m^2 + 2 m d + e^2/n) in float64: the mean of all x, and that of
       their squares.
    3. The variance is the second less the first's square.

    Float64 has the digits that this difference loses, up to means at which float32 has none for a
    variance; and d has those of the mean that m lacks.

    Args:
      step: The operation.
      moments: What it is one of.
      layout: The operand's cut.
      axes: The axes that are reduced, of which the cut one is one.
      count: N, in float64.

    Raises:
      Waiting: The summands are not summed yet.
    """
    write = step.write
    if moments.partial is None:
        shape = step.shapes()[0] or ()
        moments.partial = Tensor(_partial(step, layout, axes, count), PARTIAL, [2, *shape])
    both = step.whole(moments.partial)
    mean, squares = (write.element(both, index) for index in range(2))
    variance = write.maximum(write.subtract(squares, write.multiply(mean, mean)), 0)
    moments.variance = write.cast(variance, tf.float32)
    return write.cast(mean, tf.float32)


def _partial(step: Step, layout: Sharded, axes: Sequence[int], count: Output) -> Output:
    write, rows, place = step.write, step.inputs[0].local, step.place(layout)
    m = write.reduce("Mean", rows, axes, keep=True)
    rest = write.subtract(rows, m)
    d, e = (write.reduce(kind, rest, axes, keep=True) for kind in ("Mean", "EuclideanNorm"))
    m, d, e = (write.cast(each, tf.float64) for each in (m, d, e))
    share = write.divide(*(write.cast(each, tf.float64) for each in (place.count, place.total)))
    squares = write.divide(write.multiply(e, e), write.multiply(share, count))
    squares = write.add(squares, write.multiply(m, write.add(m, write.multiply(d, 2))))
    # Of no examples they are no numbers, as on one device: what has a share is masked.
    both = step.masked(write.stack([write.add(m, d), squares]), layout)
    return write.multiply(both, share)
