"""A compression between hosts, with full precision within each host."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression.power_sgd import PowerSGD
from tfdp.compression.update_compression import Bucket, Slot, Sums, UpdateCompression


@dataclasses.dataclass(frozen=True)
class BetweenHosts(UpdateCompression):
    """Sums within each host at full precision, and compresses what hosts send each other.

    The replicas of a host shard their sum, and each sends its shard to the replicas of the same
    place on the other hosts. So the links between hosts carry as much as one replica for each host
    would send. On one host nothing is compressed; with one replica for each host everything is.

    Cost, with m replicas on each of h hosts: each replica sends 2(m-1)/m S within its host, and
    as much as `inner` does for S/m bytes among h replicas.

    Args:
      inner: The compression between hosts: `Int8`, `Sign`, `TopK` or `RandomK`. Feedback goes
        around: `ErrorFeedback(BetweenHosts(TopK(0.01)))`.

    Raises:
      TypeError: `inner` is another compression: `PowerSGD` needs whole matrices, and
        `MomentumCorrection` and `ErrorFeedback` have residuals of whole gradients.

    >>> from tfdp.compression import ErrorFeedback, TopK
    >>> ErrorFeedback(BetweenHosts(TopK(0.01))).inner.inner.ratio
    0.01
    """

    inner: UpdateCompression

    def __post_init__(self) -> None:
        known = isinstance(self.inner, UpdateCompression)
        if not known or self.inner.feeds_back or isinstance(self.inner, (PowerSGD, BetweenHosts)):
            raise TypeError(
                "`BetweenHosts` must be given `Int8`, `Sign`, `TopK` or `RandomK`, but received "
                f"{self.inner!r}. Use ErrorFeedback(BetweenHosts(TopK(0.01)))."
            )

    def takes(self, variables: Sequence[Any]) -> tuple[bool, ...]:
        """Returns the answers of the inner compression.

        >>> from tfdp.compression import Sign
        >>> BetweenHosts(Sign()).takes([])
        ()
        """
        return self.inner.takes(variables)

    def takes_rows_of(self, variable: Any) -> bool:
        """Returns the answer of the inner compression.

        >>> from tfdp.compression import Sign
        >>> BetweenHosts(Sign(largest_table=2)).takes_rows_of(tf.Variable(tf.zeros([3, 2])))
        False
        """
        return self.inner.takes_rows_of(variable)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns no slots.

        >>> from tfdp.compression import Sign
        >>> BetweenHosts(Sign()).slots((3, 2))
        {}
        """
        return {}

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums of the hosts' sums.

        1. Divide each gradient into a part for each of the host's m replicas, and sum the parts:
           (m-1)/m S.
        2. Sum the own part over hosts, compressed.
        3. Gather the parts: (m-1)/m S.

        The term of the replica with a shard includes the loss of that shard.

        >>> from tfdp.compression import TopK
        >>> bucket = Bucket.of([1.0, -7.0])
        >>> found = BetweenHosts(TopK(0.5)).compressed(bucket, Transport(tf.identity))
        >>> found.sums[0].numpy().tolist()  # there is one host
        [1.0, -7.0]
        """
        within, between = transport.levels()
        count, shapes = within.world_size, [gradient.shape for gradient in bucket.gradients]
        sizes = [-(-math.prod(shape) // count) for shape in shapes]
        parts = [_padded(gradient, count) for gradient in bucket.gradients]
        of_host = within.sum_rows(tf.concat(parts, axis=1))
        own_parts = tf.split(of_host, sizes)
        found = self.inner.sum(dataclasses.replace(bucket, gradients=own_parts), between)
        sums = tf.split(within.gather(tf.concat(found.sums, axis=0)), sizes, axis=1)
        own = []
        for gradient, mine, kept in zip(bucket.gradients, own_parts, found.own, strict=True):
            lost = tf.scatter_nd([[within.rank]], [mine - kept], [count, *mine.shape])
            own.append(gradient - _joined(lost, gradient.shape))
        joined = [_joined(total, shape) for total, shape in zip(sums, shapes, strict=True)]
        return Sums(joined, own, bucket.slots)


def _padded(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the elements as [count, part], filled with zeros."""
    flat = tf.reshape(tensor, [-1])
    filled = tf.pad(flat, [[0, -math.prod(tensor.shape) % count]])
    return tf.reshape(filled, [count, math.prod(filled.shape) // count])


def _joined(parts: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the tensor whose parts these are."""
    return tf.reshape(tf.reshape(parts, [-1])[: math.prod(shape)], shape)
