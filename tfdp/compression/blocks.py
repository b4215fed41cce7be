"""The sum of quantized blocks: two quantizations, whatever the number of replicas; of parts one."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Transport
from tfdp.compression.update_compression import Bucket, Sums

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
    shapes = [gradient.shape for gradient in bucket.gradients]
    number = -(-sum(-(-math.prod(shape) // block) for shape in shapes) // count)  # of a chunk
    in_chunks = [count, number, block]
    blocks = tf.reshape(_in_blocks(bucket.gradients, block, count * number), in_chunks)
    sizes = tf.reshape(_sizes(shapes, block, count * number), in_chunks[:-1])
    code = encode(blocks, bucket.seed(seed, bucket.numbers[0], rank), sizes)
    total = tf.reduce_sum(decode(transport.exchange(code)), axis=0)
    code_of_total = encode(total, bucket.seed(seed, bucket.numbers[0], count + rank), sizes[rank])
    sums = decode(transport.gather(code_of_total))
    error = decode(code_of_total) - total
    own = tf.tensor_scatter_nd_add(decode(code), [[rank]], error[tf.newaxis])
    return Sums(_joined(sums, shapes), _joined(own, shapes), bucket.slots)


def sum_parts_in_blocks(
    bucket: Bucket,
    cuts: Sequence[Sharding],
    transport: Transport,
    block: int,
    encode: Encode,
    decode: Decode,
    seed: int,
) -> Sums:
    """Sums a bucket as quantized blocks, of which each replica gets its parts.

    1. Cut each gradient into the n replicas' parts, each part into blocks, and fill up with zeros
       to as many blocks as the replica with the most has.
    2. Encode them, and send each replica those of its parts: (n-1)/n of the code's bytes.
    3. A replica decodes the n codes of its parts, and adds them up as float32.

    Args:
      bucket: The gradients.
      cuts: The cut of each.
      transport: Sends the codes.
      block: The elements of a block.
      encode: Returns the code of blocks.
      decode: Returns the blocks of a code.
      seed: The seed of all draws.
    """
    count, rank = transport.world_size, transport.rank
    pairs = list(zip(bucket.gradients, cuts, strict=True))
    parts = [[tensor[cut.index(other)] for tensor, cut in pairs] for other in range(count)]
    shapes = [[cut.part_shape(other) for cut in cuts] for other in range(count)]
    longest = max(sum(-(-math.prod(shape) // block) for shape in own) for own in shapes)
    blocks = tf.stack([_in_blocks(own, block, longest) for own in parts])
    sizes = tf.stack([_sizes(own, block, longest) for own in shapes])
    code = encode(blocks, bucket.seed(seed, bucket.numbers[0], rank), sizes)
    total = tf.reduce_sum(decode(transport.exchange(code)), axis=0)
    sent = [
        _joined(of_rank, own)
        for of_rank, own in zip(tf.unstack(decode(code), count), shapes, strict=True)
    ]
    own = [
        tf.concat([of_rank[index] for of_rank in sent], cut.axis) for index, cut in enumerate(cuts)
    ]
    return Sums(_joined(total, shapes[rank]), own, bucket.slots)


def _in_blocks(tensors: Sequence[tf.Tensor], block: int, count: int) -> tf.Tensor:
    """Returns all elements as [count, block], each tensor in its own blocks, and zeros."""
    parts, size = [], 0
    for index, tensor in enumerate(tensors):
        parts.append(tf.reshape(tensor, [-1]))
        size += math.prod(tensor.shape)
        # Two variables may have one tensor as their gradient: by identity it would seem the last.
        is_last = index == len(tensors) - 1
        fill = block * count - size if is_last else -size % block
        if fill:
            parts.append(tf.zeros([fill]))
            size += fill
    joined = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
    return tf.reshape(joined, [count, block])


def _sizes(shapes: Sequence[Sequence[int]], block: int, count: int) -> tf.Tensor:
    """Returns how many elements of each block are a tensor's, float32 [count]."""
    parts, blocks = [], 0
    for shape in shapes:
        whole, rest = divmod(math.prod(shape), block)
        parts.append(tf.fill([whole], float(block)))
        if rest:
            parts.append(tf.constant([float(rest)]))
        blocks += whole + bool(rest)
    return tf.concat([*parts, tf.zeros([count - blocks])], axis=0)


def _joined(blocks: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Returns the tensors whose blocks these are."""
    flat, block = tf.reshape(blocks, [-1]), blocks.shape[-1]
    tensors, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        tensors.append(tf.reshape(flat[start : start + size], shape))
        start += -(-size // block) * block
    return tensors
