"""Gradients of which only the largest numbers travel."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from tfdp.collectives import Transport
from tfdp.compression import update
from tfdp.compression.update import AbstractLossyCompression, Bucket, Sums

# Every so-manieth number is sampled; fewer of them if less than so many of the largest would be
# among the sample; and the threshold lies so far below that rarely too few exceed it.
_STRIDE = 32
_LEAST_SAMPLED = 64
_MARGIN = 1.4


@dataclasses.dataclass(frozen=True)
class TopK(AbstractLossyCompression):
    """Sends the largest numbers of each gradient, with their places.

    Each replica chooses its own: the ceil(ratio * size) that are largest in magnitude, exactly (Lin
    et al., "Deep Gradient Compression", arXiv 1712.01887, section 3, where the ratio is 0.001). All
    receive what all have chosen, and add it up in the order of replicas. It is biased: use it in
    `ErrorFeedback`.

    Cost: each replica sends 2(n-1) ratio S of S bytes of float32, and receives as many: it pays
    while ratio is well below 1/n. A pass finds what may be among the largest, and a heap chooses.

    Args:
      ratio: The share of the numbers that travel, above 0 and at most 1.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> TopK(0.01).count((50, 30))
    15
    """

    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        update.check_ratio(self, "ratio")

    def count(self, shape: tuple[int, ...]) -> int:
        """Returns how many numbers of a gradient of this shape are sent.

        >>> TopK(0.01).count((3,))
        1
        """
        return math.ceil(self.ratio * update.elements(shape))

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums of what the replicas have chosen.

        1. Choose places by magnitude, and take the numbers there.
        2. Gather places and numbers of all gradients of the bucket: (n-1) * 8 bytes for each.
        3. Add the replicas' numbers to zeros, replica after replica.

        >>> bucket = Bucket.of([1.0, -7.0, 0.0, 3.0])
        >>> TopK(0.5).compressed(bucket, Transport(tf.identity)).sums[0].numpy().tolist()
        [0.0, -7.0, 0.0, 3.0]
        """
        sizes = [update.elements(gradient.shape) for gradient in bucket.gradients]
        counts = [self.count(tuple(gradient.shape)) for gradient in bucket.gradients]
        places, numbers, start = [], [], 0
        for gradient, size, count in zip(bucket.gradients, sizes, counts, strict=True):
            flat = tf.reshape(gradient, [-1])
            chosen = _largest(tf.abs(flat), count)
            places.append(chosen + start)
            numbers.append(tf.gather(flat, chosen) + update.poison(flat))
            start += size
        own_places, own_numbers = tf.concat(places, axis=0), tf.concat(numbers, axis=0)
        sent = tf.stack([own_places, tf.bitcast(own_numbers, tf.int32)])
        received = transport.gather(sent)
        total = tf.zeros([start])
        for rank in range(transport.world_size):
            theirs = tf.bitcast(received[rank, 1], tf.float32)
            total = _added(total, received[rank, 0], theirs)
        own = _added(tf.zeros([start]), own_places, own_numbers)
        shapes = [gradient.shape for gradient in bucket.gradients]
        return Sums(_cut(total, sizes, shapes), _cut(own, sizes, shapes), bucket.slots)


def _largest(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the places of the largest values, exactly.

    In a long vector a sample says what is surely too small: the choice is among the rest. Where the
    sample misleads, so that the rest is too short, the choice is among all.
    """
    size = update.elements(values.shape)
    stride = min(_STRIDE, count // _LEAST_SAMPLED)
    if stride < 2 or 4 * count > size:
        return tf.math.top_k(values, count, sorted=False).indices
    sample = values[::stride]
    enough = min(int(_MARGIN * count / stride) + 1, update.elements(sample.shape))
    threshold = tf.reduce_min(tf.math.top_k(sample, enough, sorted=False).values)
    candidates = tf.cast(tf.where(values >= threshold)[:, 0], tf.int32)

    def among_candidates() -> tf.Tensor:
        best = tf.math.top_k(tf.gather(values, candidates), count, sorted=False).indices
        return tf.gather(candidates, best)

    return tf.ensure_shape(
        tf.cond(
            tf.size(candidates) >= count,
            among_candidates,
            lambda: tf.math.top_k(values, count, sorted=False).indices,
        ),
        [count],
    )


def _added(total: tf.Tensor, places: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Adds numbers at places that all differ, so that the order does not matter."""
    return tf.tensor_scatter_nd_add(total, places[:, tf.newaxis], numbers)


def _cut(flat: tf.Tensor, sizes: list[int], shapes: list[tf.TensorShape]) -> list[tf.Tensor]:
    parts = tf.split(flat, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
