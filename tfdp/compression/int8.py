"""Gradients that travel as 8-bit integers with a scale for each block."""

import dataclasses
import math

import tensorflow as tf

from tfdp.compression import update_compression
from tfdp.compression.block_compression import AbstractBlockCompression
from tfdp.compression.update_compression import Bucket

_LEVELS = 127.0


@dataclasses.dataclass(frozen=True)
class Int8(AbstractBlockCompression):
    """Sends blocks of gradients as integers from -127 to 127, times a scale for each block.

    A number x of a block with largest magnitude s becomes floor(127 x / s + u), with u drawn evenly
    from [0, 1): QSGD's rounding (Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", arXiv 1610.02132, section 3.1) with the largest number in place of
    the norm. It is unbiased up to 2**-16 of a level, and off by less than a level, s / 127.

    Integers cannot be added on the way: they would overflow, or be rounded at each step. So
    replicas exchange chunks. The owner of a chunk sums it as float32, rounds it once more and sends
    it to all: two roundings for any number of replicas and any topology.

    With the strategy's `shard` a chunk is a replica's shard of the gradients, and the replica needs
    no more of the sum. It does not round the chunk again, and the new weights are sent unrounded.
    With one rounding the error is at most n levels; without `shard` a level of the sum adds to
    that. Each replica holds unsharded gradients until the update.

    Cost: each replica sends 2(n-1)/n * (S/4 + 4 S/(4 block)) of S bytes of float32, with `shard`
    half of it where the parts are even, and makes some ten passes over them.

    Args:
      block: The elements that share a scale, a multiple of 4. Smaller ones are more exact; 64
        sends a sixteenth more.
      seed: The seed of the rounding, which also differs by update and replica.
      exclude: See `AbstractLossyCompression`.
      smallest: See `AbstractLossyCompression`.
      largest_table: See `AbstractLossyCompression`.

    Raises:
      ValueError: An argument is out of range.

    >>> Int8(block=4, smallest=1).takes_shape((3, 2))
    True
    >>> code = Int8(block=4).encode(tf.constant([[127.0, -1.0, 0.0, 4.0]]), tf.constant([0, 1]))
    >>> Int8(block=4).decode(code).numpy().tolist()
    [[127.0, -1.0, 0.0, 4.0]]
    """

    block: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        update_compression.check_integer(self, "block", 4, multiple_of=4)
        update_compression.check_integer(self, "seed", 0)

    def payload_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of integers and scales.

        >>> Int8(block=4).payload_bytes((3, 3))
        24
        """
        blocks = -(-math.prod(shape) // self.block)
        return blocks * (self.block + 4)

    def _code(self, blocks: tf.Tensor, sizes: tf.Tensor, bucket: Bucket, number: int) -> tf.Tensor:
        # Zeros that fill a block change no largest number.
        return self.encode(blocks, bucket.seed(self.seed, bucket.numbers[0], number))

    def encode(self, blocks: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns integers and scale as int32.

        Args:
          blocks: Float32 [..., block]. A block with a number that is not finite comes back as NaN.
          seed: The seed of the rounding, [2].

        Returns:
          int32 [..., block / 4 + 1].

        >>> Int8(block=8).encode(tf.ones([2, 8]), tf.constant([0, 1])).shape.as_list()
        [2, 3]
        """
        largest = tf.reduce_max(tf.abs(blocks), axis=-1, keepdims=True)
        draws = _draws(blocks.shape, seed)
        levels = tf.floor(blocks * tf.math.divide_no_nan(_LEVELS, largest) + draws)
        integers = tf.cast(tf.minimum(levels, _LEVELS), tf.int8)
        words = tf.bitcast(tf.reshape(integers, [*blocks.shape[:-1], self.block // 4, 4]), tf.int32)
        scale = largest / _LEVELS + update_compression.poison(blocks, -1, keepdims=True)
        return tf.concat([words, tf.bitcast(scale, tf.int32)], axis=-1)

    def decode(self, code: tf.Tensor) -> tf.Tensor:
        """Returns the blocks of a code, float32 [..., block].

        >>> Int8(block=4).decode(tf.constant([[0, 0]])).numpy().tolist()
        [[0.0, 0.0, 0.0, 0.0]]
        """
        words, scale = code[..., :-1], tf.bitcast(code[..., -1:], tf.float32)
        integers = tf.reshape(tf.bitcast(words, tf.int8), [*code.shape[:-1], self.block])
        return tf.cast(integers, tf.float32) * scale


def _draws(shape: tf.TensorShape, seed: tf.Tensor) -> tf.Tensor:
    """Returns numbers drawn evenly from [0, 1) in steps of 2**-16: two for the price of one."""
    words = tf.random.stateless_uniform(
        [math.prod(shape) // 2], seed, minval=None, maxval=None, dtype=tf.int32
    )
    return tf.reshape(tf.cast(tf.bitcast(words, tf.uint16), tf.float32), shape) * 2.0**-16
