"""Gradients that travel as two thin factors of each matrix."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression import update_compression
from tfdp.compression.update_compression import AbstractLossyCompression, Bucket, Slot, Sums

_FACTOR = "factor"


@dataclasses.dataclass(frozen=True)
class PowerSGD(AbstractLossyCompression):
    """Sends an approximation of low rank of each matrix, by one step of a power iteration.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    arXiv 1905.13727, algorithm 1, with sums in place of means, and Householder's QR in place of
    Gram-Schmidt, for which a gradient of zeros is no exception. It is biased: use it in
    `ErrorFeedback`, as the paper does.

    The axes of a kernel with more than two are divided into those of rows and those of columns, so
    that the factors are smallest: a convolution's [3, 3, 64, 128] has 576 rows, an attention's
    [256, 4, 64] has 256. Vectors, and matrices with factors larger than half of the matrix, travel
    uncompressed.

    Cost: each replica sends the sum of rank (rows + columns) numbers in place of rows * columns, in
    two sums, the second after the first. It computes three products of a matrix with a thin one,
    and keeps the second factor, columns * rank numbers, for the next update. Different processors
    may round the QR differently: use processors of one kind.

    Args:
      rank: The rank of the approximation.
      seed: The seed of the first factors.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.
      largest_table: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> PowerSGD(4).takes_shape((3, 3, 64, 128)), PowerSGD(4).takes_shape((9000,))
    (True, False)
    >>> PowerSGD(4).slots((3, 3, 64, 128))["factor"].shape
    (128, 4)
    >>> PowerSGD(4).slots((256, 4, 64))["factor"].shape
    (256, 4)
    """

    rank: int
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        update_compression.check_integer(self, "rank", 1)
        update_compression.check_integer(self, "seed", 0)

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Returns whether a gradient of this shape is a large matrix that becomes smaller."""
        if len(shape) < 2 or not super().takes_shape(shape):
            return False
        rows, columns = _matrix(shape)
        return 2 * self.rank * (rows + columns) <= rows * columns

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns the factor that the next update begins with, the same on all replicas."""
        _, columns = _matrix(shape)
        return {_FACTOR: Slot((columns, self.rank), of_replica=False, seed=self.seed)}

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of both factors.

        >>> PowerSGD(4).payload_bytes((100, 50))
        2400
        """
        return 4 * self.rank * sum(_matrix(shape))

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums' approximations.

        1. P = M Q, with the Q of the update before.
        2. Sum P over replicas: rank * rows numbers of each matrix.
        3. Make P's columns orthonormal.
        4. Q = M^T P.
        5. Sum Q over replicas: rank * columns numbers of each.
        6. The sum is P Q^T.

        >>> powers = PowerSGD(1)
        >>> bucket = Bucket.of([[2.0, 4.0], [3.0, 6.0]], slots=[{"factor": tf.ones([2, 1])}])
        >>> powers.compressed(bucket, Transport(tf.identity)).sums[0].numpy().round(3).tolist()
        [[2.0, 4.0], [3.0, 6.0]]
        """
        matrices = [tf.reshape(g, _matrix(tuple(g.shape))) for g in bucket.gradients]
        before = [slots[_FACTOR] for slots in bucket.slots]
        pairs = zip(matrices, before, strict=True)
        left = _summed([tf.matmul(m, q) for m, q in pairs], transport.sum)
        left = [tf.linalg.qr(p).q for p in left]
        own = [tf.matmul(m, p, transpose_a=True) for m, p in zip(matrices, left, strict=True)]
        right = _summed(own, transport.sum)
        shapes = [gradient.shape for gradient in bucket.gradients]
        slots = [
            {_FACTOR: tf.where(tf.reduce_all(tf.math.is_finite(new)), new, old)}
            for new, old in zip(right, before, strict=True)
        ]
        return Sums(_products(left, right, shapes), _products(left, own, shapes), slots)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns rows and columns; of two splits that are as good the later axes are the columns."""
    splits = (
        (math.prod(shape[:axis]), math.prod(shape[axis:])) for axis in range(len(shape) - 1, 0, -1)
    )
    return min(splits, key=sum)


def _summed(
    tensors: Sequence[tf.Tensor], sum_: Callable[[tf.Tensor], tf.Tensor]
) -> list[tf.Tensor]:
    flat = sum_(tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0))
    parts = tf.split(flat, [math.prod(tensor.shape) for tensor in tensors])
    return [tf.reshape(part, like.shape) for part, like in zip(parts, tensors, strict=True)]


def _products(
    left: Sequence[tf.Tensor], right: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape]
) -> list[tf.Tensor]:
    return [
        tf.reshape(tf.matmul(p, q, transpose_b=True), shape)
        for p, q, shape in zip(left, right, shapes, strict=True)
    ]
