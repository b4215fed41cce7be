"""Gradients of which numbers at random places travel, the same places on all replicas."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from tfdp.collectives import Transport
from tfdp.compression import update
from tfdp.compression.update import AbstractLossyCompression, Bucket, Sums


@dataclasses.dataclass(frozen=True)
class RandomK(AbstractLossyCompression):
    """Sends the numbers at ceil(ratio * size) random places of each gradient.

    All replicas draw the same places from the seed and the number of the update, without
    replacement, so that only numbers travel, and are summed by the topology. Alone, the numbers are
    multiplied by size / count, which makes the sum unbiased (Stich et al., "Sparsified SGD with
    Memory", arXiv 1809.07599, remark 2.3). In `ErrorFeedback` they are sent as they are, as there:
    scaled up they would not converge.

    Cost: ratio times what the sum of the whole sends: 2(n-1)/n ratio S of S bytes.

    Args:
      ratio: The share of the numbers that travel, above 0 and at most 1.
      seed: The seed of the places.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> RandomK(0.5).places(Bucket.of([1.0, 2.0, 3.0, 4.0]), 0).shape.as_list()
    [2]
    """

    ratio: float
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        update.check_ratio(self, "ratio")
        update.check_integer(self, "seed", 0)

    def places(self, bucket: Bucket, index: int) -> tf.Tensor:
        """Returns the places in one of the bucket's gradients, int32, each once.

        >>> int(RandomK(1.0).places(Bucket.of([1.0]), 0)[0])
        0
        """
        size = update.elements(bucket.gradients[index].shape)
        count = math.ceil(self.ratio * size)
        seed = bucket.seed(self.seed, bucket.numbers[index])
        shuffled = tf.random.experimental.index_shuffle(
            tf.range(count), seed, tf.constant(size - 1, tf.int32)
        )
        # The shuffle prefers some places. Turned by an even draw, each place is as likely.
        turned = shuffled - tf.random.stateless_uniform([], seed, maxval=size, dtype=tf.int32)
        return tf.where(turned < 0, turned + size, turned)

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums at the drawn places, zeros elsewhere."""
        flat = [tf.reshape(gradient, [-1]) for gradient in bucket.gradients]
        places = [self.places(bucket, index) for index in range(len(flat))]
        numbers = [
            tf.gather(value, at) * self._scale(value, bucket) + update.poison(value)
            for value, at in zip(flat, places, strict=True)
        ]
        total = transport.sum(tf.concat(numbers, axis=0))
        parts = tf.split(total, [update.elements(value.shape) for value in numbers])
        sums, own = (
            [
                tf.reshape(tf.scatter_nd(at[:, tf.newaxis], value, like.shape), gradient.shape)
                for at, value, like, gradient in zip(
                    places, values, flat, bucket.gradients, strict=True
                )
            ]
            for values in (parts, numbers)
        )
        return Sums(sums, own, bucket.slots)

    def _scale(self, flat: tf.Tensor, bucket: Bucket) -> float:
        size = update.elements(flat.shape)
        return 1.0 if bucket.feedback else size / math.ceil(self.ratio * size)
