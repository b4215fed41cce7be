"""The sum of quantized blocks: two quantizations, whatever the number of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.collectives import Transport
from tfdp.compression.update import Bucket, Sums

# A function that returns what stands for blocks, int32 [..., m]. It is given the blocks
# [..., block], a seed, and how many elements of each block are no fill, float32 [...].
Encode = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

# A function that returns the blocks, float32 [..., block].
Decode = Callable[[tf.Tensor], tf.Tensor]


def sum_in_chunks(
    bucket: Bucket, transport: Transport, block: int, encode: Encode, decode: Decode, seed: int
) -> Sums:
    """Sums a bucket as quantized blocks.

    1. Cut each gradient into blocks, the last one filled with zeros, and the blocks of all into a
       chunk for each of the n replicas.
    2. Encode the chunks, and send each to its owner: (n-1)/n of the code's bytes.
    3. The owner decodes the n codes of its chunk, and adds them up as float32.
    4. It encodes the sum, and sends it to all: (n-1)/n of the code's bytes.
    5. Every replica decodes the same codes.

    The owner's second error is in its own term, so that error feedback brings it back, too.

    Args:
      bucket: The gradients.
      transport: Sends the codes.
      block: The elements of a block.
      encode: Returns the code of blocks.
      decode: Returns the blocks of a code.
      seed: The seed of all draws.
    """
    count, rank = transport.world_size, transport.rank
    blocks = _cut(bucket.gradients, block, count)
    sizes = _sizes(bucket.gradients, block, count)
    code = encode(blocks, bucket.seed(seed, bucket.numbers[0], rank), sizes)
    total = tf.reduce_sum(decode(transport.exchange(code)), axis=0)
    code_of_total = encode(total, bucket.seed(seed, bucket.numbers[0], count + rank), sizes[rank])
    sums = decode(transport.gather(code_of_total))
    error = decode(code_of_total) - total
    own = tf.tensor_scatter_nd_add(decode(code), [[rank]], error[tf.newaxis])
    shapes = [gradient.shape for gradient in bucket.gradients]
    return Sums(_joined(sums, shapes), _joined(own, shapes), bucket.slots)


def _cut(tensors: Sequence[tf.Tensor], block: int, count: int) -> tf.Tensor:
    """Returns all elements as [count, blocks of a chunk, block], each tensor in its own blocks."""
    parts, size = [], 0
    for index, tensor in enumerate(tensors):
        parts.append(tf.reshape(tensor, [-1]))
        size += math.prod(tensor.shape)
        # Two variables may have one tensor as their gradient: by identity it would seem the last.
        is_last = index == len(tensors) - 1
        fill = -size % (block * count if is_last else block)
        if fill:
            parts.append(tf.zeros([fill]))
            size += fill
    joined = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
    return tf.reshape(joined, [count, size // (block * count), block])


def _sizes(tensors: Sequence[tf.Tensor], block: int, count: int) -> tf.Tensor:
    """Returns how many elements of each block are a tensor's, float32 [count, blocks]."""
    parts, blocks = [], 0
    for tensor in tensors:
        whole, rest = divmod(math.prod(tensor.shape), block)
        parts.append(tf.fill([whole], float(block)))
        if rest:
            parts.append(tf.constant([float(rest)]))
        blocks += whole + bool(rest)
    fill = -blocks % count
    joined = tf.concat([*parts, tf.zeros([fill])], axis=0)
    return tf.reshape(joined, [count, (blocks + fill) // count])


def _joined(blocks: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns the tensors whose blocks these are."""
    flat, block = tf.reshape(blocks, [-1]), blocks.shape[-1]
    tensors, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        tensors.append(tf.reshape(flat[start : start + size], shape))
        start += -(-size // block) * block
    return tensors
