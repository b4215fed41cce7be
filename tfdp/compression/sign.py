"""Gradients that travel as their signs with a scale for each block."""

import dataclasses
import math

import tensorflow as tf

from tfdp.compression import update_compression
from tfdp.compression.block_compression import AbstractBlockCompression
from tfdp.compression.update_compression import Bucket

_WORD = 32


@dataclasses.dataclass(frozen=True)
class Sign(AbstractBlockCompression):
    """Sends one bit for each number of a gradient, and the mean of their magnitudes for each block.

    The compressor of EF-SIGNSGD (Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", arXiv 1901.09847, section 4), with a scale for each block in
    place of each layer. The last block of a gradient may be a short one. It is biased: use it in
    `ErrorFeedback`, without which it may not converge. The sum is quantized once more, as in
    `Int8`, and is not with `shard`. The sign of zero counts as +.

    Cost: each replica sends 2(n-1)/n * (S/32 + S/block) of S bytes of float32.

    Args:
      block: The elements that share a scale, a multiple of 32.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.
      largest_table: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> sign = Sign(block=32)
    >>> sign.decode(sign.encode(tf.reshape([1.0, -3.0] * 16, [1, 32]))).numpy()[0, :3].tolist()
    [2.0, -2.0, 2.0]
    """

    block: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        update_compression.check_integer(self, "block", _WORD, multiple_of=_WORD)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of bits and scales.

        >>> Sign(block=32).payload_bytes((10, 10))
        32
        """
        blocks = -(-math.prod(shape) // self.block)
        return 4 * blocks * (self.block // _WORD + 1)

    def _code(self, blocks: tf.Tensor, sizes: tf.Tensor, bucket: Bucket, number: int) -> tf.Tensor:
        return self.encode(blocks, sizes)  # nothing is drawn

    def encode(self, blocks: tf.Tensor, sizes: tf.Tensor | None = None) -> tf.Tensor:
        """Returns bits and scale as int32.

        Args:
          blocks: Float32 [..., block]. A block with a number that is not finite comes back as
            numbers that are not.
          sizes: The number of elements at the beginning of each block of which the scale is the
            mean, float32 [...]; the elements after them are padding. None: all.

        Returns:
          int32 [..., block / 32 + 1].

        >>> sign = Sign(block=64)
        >>> sign.encode(tf.ones([2, 64])).shape.as_list()
        [2, 3]
        >>> filled = tf.pad([[6.0, -2.0]], [[0, 0], [0, 62]])
        >>> sign.decode(sign.encode(filled, tf.constant([2.0])))[0, :2].numpy().tolist()
        [4.0, -4.0]
        """
        shape = [*blocks.shape[:-1], self.block // _WORD, _WORD]
        bits = tf.cast(tf.reshape(blocks, shape) >= 0.0, tf.int32)
        words = tf.reduce_sum(tf.bitwise.left_shift(bits, tf.range(_WORD)), axis=-1)
        magnitudes = tf.abs(blocks)
        if sizes is None:
            scale = tf.reduce_mean(magnitudes, axis=-1, keepdims=True)
        else:
            sizes = sizes[..., tf.newaxis]
            kept = tf.where(tf.range(self.block, dtype=tf.float32) < sizes, magnitudes, 0.0)
            scale = tf.reduce_sum(kept, axis=-1, keepdims=True) / tf.maximum(sizes, 1.0)
        return tf.concat([words, tf.bitcast(scale, tf.int32)], axis=-1)

    def decode(self, code: tf.Tensor) -> tf.Tensor:
        """Returns the blocks of a code, float32 [..., block].

        >>> float(Sign(block=32).decode(tf.constant([[-1, 0]]))[0, 31])
        0.0
        """
        words, scale = code[..., :-1], tf.bitcast(code[..., -1:], tf.float32)
        shifted = tf.bitwise.right_shift(words[..., tf.newaxis], tf.range(_WORD))
        bits = tf.bitwise.bitwise_and(shifted, 1)
        signs = tf.reshape(tf.cast(2 * bits - 1, tf.float32), [*code.shape[:-1], self.block])
        return signs * scale
