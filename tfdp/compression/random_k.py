"""Gradients of which numbers at random places travel, the same ones on all replicas."""

import dataclasses
import math

import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression import update_compression
from tfdp.compression.update_compression import AbstractLossyCompression, Bucket, Sums


@dataclasses.dataclass(frozen=True)
class RandomK(AbstractLossyCompression):
    """Sends ceil(ratio * size) numbers of each gradient, at random places.

    A gradient is divided into as many runs, as evenly as possible, and one number is drawn from
    each. The seed and the number of the update decide the places, the same on all replicas, so only
    numbers travel, and the topology sums them. Alone, a number is multiplied by the length of its
    run, which makes the sum unbiased (Stich et al., "Sparsified SGD with Memory", arXiv 1809.07599,
    remark 2.3, which draws places without runs). In `ErrorFeedback` it is sent as it is, as in the
    paper: multiplied it would not converge.

    Cost: ratio times the bytes of a sum of whole gradients: 2(n-1)/n ratio S of S bytes.

    Args:
      ratio: The share of the numbers that travel, above 0 and at most 1.
      seed: The seed of the places.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.
      largest_table: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> RandomK(0.01).ratio
    0.01
    """

    ratio: float
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        update_compression.check_ratio(self, "ratio")
        update_compression.check_integer(self, "seed", 0)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the numbers.

        >>> RandomK(0.01).payload_bytes((50, 30))
        60
        """
        return 4 * math.ceil(self.ratio * math.prod(shape))

    def places(self, bucket: Bucket, index: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the places in one of the bucket's gradients, int32, and their runs' lengths.

        >>> places, lengths = RandomK(0.5).places(Bucket.of([5.0, 6.0, 7.0, 8.0]), 0)
        >>> lengths.numpy().tolist()
        [2, 2]
        """
        size = math.prod(bucket.gradients[index].shape)
        count = math.ceil(self.ratio * size)
        bounds = tf.cast(tf.range(count + 1, dtype=tf.int64) * size // count, tf.int32)
        lengths = bounds[1:] - bounds[:-1]
        draws = tf.random.stateless_uniform(
            [count], bucket.seed(self.seed, bucket.numbers[index]), dtype=tf.float32
        )
        steps = tf.cast(draws * tf.cast(lengths, tf.float32), tf.int32)
        return bounds[:-1] + tf.minimum(steps, lengths - 1), lengths

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums at the drawn places, zeros elsewhere.

        >>> bucket = Bucket.of([5.0, 5.0, 5.0, 5.0])
        >>> found = RandomK(0.25).compressed(bucket, Transport(tf.identity))
        >>> sorted(found.sums[0].numpy().tolist())
        [0.0, 0.0, 0.0, 20.0]
        """
        flat = [tf.reshape(gradient, [-1]) for gradient in bucket.gradients]
        places, numbers = [], []
        for index, value in enumerate(flat):
            at, lengths = self.places(bucket, index)
            factors = 1.0 if bucket.feedback else tf.cast(lengths, tf.float32)
            places.append(at)
            numbers.append(tf.gather(value, at) * factors + update_compression.poison(value))
        total = transport.sum(tf.concat(numbers, axis=0))
        parts = tf.split(total, [math.prod(value.shape) for value in numbers])
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
