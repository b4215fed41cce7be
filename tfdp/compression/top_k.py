"""Gradients of which only the largest numbers travel."""

import dataclasses
import functools
import math

import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression import update_compression
from tfdp.compression.update_compression import AbstractLossyCompression, Bucket, Sums

# Every so-manieth number is sampled; fewer of them if less than so many of the largest would be
# among the sample; and the threshold lies so far below that rarely too few exceed it.
_STRIDE = 32
_LEAST_SAMPLED = 64
_MARGIN = 1.4

# What the ratio of a warm-up is multiplied with from stage to stage, and the number of stages.
_STEP, _STAGES = 0.25, 4


@dataclasses.dataclass(frozen=True)
class TopK(AbstractLossyCompression):
    """Sends the largest numbers of each gradient, with their places.

    Each replica chooses its own: exactly the ceil(ratio * size) largest in magnitude (Lin et al.,
    "Deep Gradient Compression", arXiv 1712.01887, section 3, where the ratio is 0.001). All
    replicas receive the numbers of all, and add them up in the order of replicas. It is biased: use
    it in `ErrorFeedback`.

    Cost: each replica sends 2(n-1) ratio S of S bytes of float32, and receives as many: it pays
    while ratio is well below 1/n. One pass finds candidates, and a heap chooses among them. With
    `exact=False` there is no heap: a replica sends the numbers above a threshold, which it takes
    from a sample of every 32nd number, or of more (the paper's threshold sampling). If more than
    ceil(ratio * size) exceed it, some are left out, at random by the number of the update; if
    fewer, zeros fill up. The choice is exact if fewer than 128 numbers of a gradient are sent, or
    more than a quarter.

    With `warmup_steps` the ratio comes down as in that paper, section 3.3: it is 1/4, 1/16, 1/64
    and 1/256 in the four quarters of so many first updates, but never less than `ratio`.

    Args:
      ratio: The share of the numbers that travel, above 0 and at most 1.
      warmup_steps: The number of updates until the ratio is `ratio`.
      exact: Whether the largest are chosen exactly.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.
      largest_table: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> TopK(0.01).count((50, 30))
    15
    """

    ratio: float
    warmup_steps: int = 0
    exact: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        update_compression.check_ratio(self, "ratio")
        update_compression.check_integer(self, "warmup_steps", 0)
        if not isinstance(self.exact, bool):
            raise ValueError(
                f"`exact` of `TopK` must be True or False, but received {self.exact!r}. Use "
                "TopK(0.01, exact=False) for threshold sampling."
            )

    def count(self, shape: tuple[int, ...], stage: int = _STAGES) -> int:
        """Returns how many numbers of a gradient of this shape are sent.

        Args:
          shape: The shape.
          stage: The quarter of the warm-up, from 0; 4: after it.

        >>> TopK(0.01).count((3,))
        1
        >>> [TopK(0.01, warmup_steps=100).count((40, 25), stage) for stage in range(5)]
        [250, 63, 16, 10, 10]
        """
        ratio = max(self.ratio, _STEP ** (stage + 1)) if stage < _STAGES else self.ratio
        return math.ceil(ratio * math.prod(shape))

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of places and numbers, after a warm-up.

        >>> TopK(0.01).payload_bytes((50, 30))
        120
        """
        return 8 * self.count(shape)

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums of the numbers that the replicas have chosen.

        1. Choose places by magnitude, and take the numbers there.
        2. Gather places and numbers of all gradients of the bucket: (n-1) * 8 bytes for each.
        3. Add the replicas' numbers to zeros, replica after replica.

        >>> bucket = Bucket.of([1.0, -7.0, 0.0, 3.0])
        >>> TopK(0.5).compressed(bucket, Transport(tf.identity)).sums[0].numpy().tolist()
        [0.0, -7.0, 0.0, 3.0]
        """
        if not self.warmup_steps:
            sums, own = self._in_stage(_STAGES, bucket, transport)
        else:
            stage = tf.minimum(bucket.step * _STAGES // self.warmup_steps, _STAGES)
            ways = [
                functools.partial(self._in_stage, number, bucket) for number in range(_STAGES + 1)
            ]
            sums, own = transport.choose(stage, ways)
        return Sums(sums, own, bucket.slots)

    def _in_stage(
        self, stage: int, bucket: Bucket, transport: Transport
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the sums, and the replica's own terms of them."""
        sizes = [math.prod(gradient.shape) for gradient in bucket.gradients]
        counts = [self.count(tuple(gradient.shape), stage) for gradient in bucket.gradients]
        places, numbers = [], []
        for gradient, size, count in zip(bucket.gradients, sizes, counts, strict=True):
            flat = tf.reshape(gradient, [-1])
            if self.exact or not _is_sampled(size, count):
                chosen = _largest(tf.abs(flat), count)
                values = tf.gather(flat, chosen)
            else:
                chosen, values = _above_threshold(flat, count, bucket.step)
            places.append(chosen)
            numbers.append(values + update_compression.poison(flat))
        joined = tf.concat(numbers, axis=0)
        sent = tf.stack([tf.concat(places, axis=0), tf.bitcast(joined, tf.int32)])
        received = transport.gather(sent)
        own = [_spread(*each) for each in zip(places, numbers, sizes, strict=True)]
        sums: list[tf.Tensor] = []
        for rank in range(transport.world_size):
            of_rank = tf.split(received[rank, 0], counts)
            theirs = tf.split(tf.bitcast(received[rank, 1], tf.float32), counts)
            if rank == 0:
                sums = [_spread(*each) for each in zip(of_rank, theirs, sizes, strict=True)]
            else:
                sums = [_added(*each) for each in zip(sums, of_rank, theirs, strict=True)]
        shapes = [gradient.shape for gradient in bucket.gradients]
        return _shaped(sums, shapes), _shaped(own, shapes)


def _largest(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the places of the largest values, exactly.

    In a long vector a sample says what is surely too small: the choice is among the rest. Where the
    sample misleads, so that the rest is too short, the choice is among all.
    """
    size = math.prod(values.shape)
    if not _is_sampled(size, count):
        return tf.math.top_k(values, count, sorted=False).indices
    candidates = _candidates(values, count, _MARGIN)

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


def _above_threshold(flat: tf.Tensor, count: int, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns places of numbers above a threshold, and the numbers; zeros where too few are."""
    candidates = _candidates(tf.abs(flat), count, 1.0)
    found = tf.size(candidates)
    # Of too many those are left out that follow a place which is another one in each update.
    shift = tf.random.stateless_uniform([], [step, count], 0, tf.maximum(found, 1), tf.int32)
    chosen = tf.roll(candidates, shift, axis=0)[:count]
    missing = [[0, count - tf.size(chosen)]]
    values = tf.pad(tf.gather(flat, chosen), missing)
    return tf.ensure_shape(tf.pad(chosen, missing), [count]), tf.ensure_shape(values, [count])


def _is_sampled(size: int, count: int) -> bool:
    """Returns whether a sample can tell what is among the largest."""
    return count >= 2 * _LEAST_SAMPLED and 4 * count <= size


def _candidates(values: tf.Tensor, count: int, margin: float) -> tf.Tensor:
    """Returns the places of about `margin` times as many of the largest values, by a sample."""
    stride = min(_STRIDE, count // _LEAST_SAMPLED)
    sample = values[::stride]
    enough = min(int(margin * count / stride) + 1, math.prod(sample.shape))
    threshold = tf.reduce_min(tf.math.top_k(sample, enough, sorted=False).values)
    return tf.cast(tf.where(values >= threshold)[:, 0], tf.int32)


def _added(total: tf.Tensor, places: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Adds numbers at places that all differ, so that the order does not matter."""
    return tf.tensor_scatter_nd_add(total, places[:, tf.newaxis], numbers)


def _spread(places: tf.Tensor, numbers: tf.Tensor, size: int) -> tf.Tensor:
    """Returns zeros with numbers at places that all differ."""
    return tf.scatter_nd(places[:, tf.newaxis], numbers, [size])


def _shaped(flat: list[tf.Tensor], shapes: list[tf.TensorShape]) -> list[tf.Tensor]:
    return [tf.reshape(value, shape) for value, shape in zip(flat, shapes, strict=True)]
