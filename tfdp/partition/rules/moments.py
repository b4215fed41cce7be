"""A mean over the batch and its variance, from one sum."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.layouts import PARTIAL, REPLICATED, Sharded
from tfdp.partition.moments import Moments
from tfdp.partition.rules.registry import Step
from tfdp.partition.sizes import SizeLike
from tfdp.partition.tensors import Tensor
from tfdp.partition.writing import Output


def mean_of(
    step: Step, moments: Moments, layout: Sharded, axes: Sequence[int], shape: Sequence[SizeLike | None]
) -> Output | None:
    """Returns the whole mean of the operation's operand, and keeps the variance, or None.

    1. Each replica computes the mean m and the variance v of its own rows, in float32.
    2. The replicas sum n/N (m, v + m^2), for n rows of N, in float64: the mean, and that of squares.
    3. The variance is the second less the first's square.

    That is the formula of Chan, Golub and LeVeque (1983), multiplied out. Float64 has the digits that
    the difference loses, up to the means at which float32 has none for a variance. In float64 itself
    two sums are right, and None is returned.

    Raises:
      Waiting: The summands are not summed yet.
    """
    if step.inputs[0].dtype != tf.float32 or layout.is_fixed:
        return None
    write = step.write
    if moments.summand is None:
        moments.summand = Tensor(_summand(step, layout, axes), PARTIAL, [2, *shape])
    both = step.whole(moments.summand)
    mean, squares = (write.element(both, index) for index in range(2))
    variance = write.maximum(write.subtract(squares, write.multiply(mean, mean)), 0)
    moments.variance = write.cast(variance, tf.float32)
    return write.cast(mean, tf.float32)


def _summand(step: Step, layout: Sharded, axes: Sequence[int]) -> Output:
    write, rows, place = step.write, step.inputs[0].local, step.place(layout)
    mean = write.reduce("Mean", rows, axes, keep=True)
    squares = write.squared_difference(rows, mean)
    variance = write.cast(write.reduce("Mean", squares, axes, keep=True), tf.float64)
    mean = write.cast(mean, tf.float64)
    both = write.stack([mean, write.add(variance, write.multiply(mean, mean))])
    count, total = (write.cast(each, tf.float64) for each in (place.count, place.total))
    # Of no examples they are no numbers, as on one device: what is divided is masked.
    return write.divide(write.multiply(step.masked(both, layout), count), total)
