"""The sum of quantized blocks: two quantizations, whatever the number of replicas; of parts one."""

import abc
import math
from collections.abc import Sequence

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives import Transport
from tfdp.compression.update_compression import AbstractLossyCompression, Bucket, Sums


class AbstractBlockCompression(AbstractLossyCompression):
    """A compression that sends a code for each block of numbers. Replicas exchange codes.

    Attributes:
      block: The elements of a block.
    """

    block: int

    @abc.abstractmethod
    def _code(self, blocks: tf.Tensor, sizes: tf.Tensor, bucket: Bucket, number: int) -> tf.Tensor:
        """Returns what stands for blocks, int32 [..., m].

        Args:
          blocks: The blocks, float32 [..., block].
          sizes: How many elements of each block are no fill, float32 [...].
          bucket: The bucket that they are of.
          number: What tells the draws of this update apart from others.
        """

    @abc.abstractmethod
    def decode(self, code: tf.Tensor) -> tf.Tensor:
        """Returns the blocks of a code, float32 [..., block]."""

    def compressed(self, bucket: Bucket, transport: Transport) -> Sums:
        """Returns the sums of quantized blocks.

        1. Divide each gradient into blocks, the last one filled with zeros, and the blocks of all
           into a chunk for each of the n replicas.
        2. Encode the chunks, and send each to its owner: (n-1)/n of the code's bytes.
        3. The owner decodes the n codes of its chunk, and adds them up as float32.
        4. It encodes the sum, and sends it to all: (n-1)/n of the code's bytes.
        5. Every replica decodes the same codes.

        The owner's second error is in its own term, so that error feedback brings it back, too.

        >>> from tfdp.compression import Int8, Sign
        >>> bucket, alone = Bucket.of([4.0] * 16 + [-2.0] * 16), Transport(tf.identity)
        >>> Int8(block=4).compressed(bucket, alone).sums[0].numpy()[14:18].tolist()
        [4.0, 4.0, -2.0, -2.0]
        >>> Sign(block=32).compressed(bucket, alone).sums[0].numpy()[14:18].tolist()
        [3.0, 3.0, -3.0, -3.0]
        """
        count, rank, block = transport.world_size, transport.rank, self.block
        shapes = [gradient.shape for gradient in bucket.gradients]
        number = -(-sum(-(-math.prod(shape) // block) for shape in shapes) // count)  # of a chunk
        in_chunks = [count, number, block]
        blocks = tf.reshape(_in_blocks(bucket.gradients, block, count * number), in_chunks)
        sizes = tf.reshape(_sizes(shapes, block, count * number), in_chunks[:-1])
        code = self._code(blocks, sizes, bucket, rank)
        total = tf.reduce_sum(self.decode(transport.exchange(code)), axis=0)
        code_of_total = self._code(total, sizes[rank], bucket, count + rank)
        sums = self.decode(transport.gather(code_of_total))
        error = self.decode(code_of_total) - total
        own = tf.tensor_scatter_nd_add(self.decode(code), [[rank]], error[tf.newaxis])
        return Sums(_joined(sums, shapes), _joined(own, shapes), bucket.slots)

    @property
    def sums_parts(self) -> bool:
        """Whether it has `compressed_parts`: it has."""
        return True

    def compressed_parts(
        self, bucket: Bucket, shardings: Sequence[Sharding], transport: Transport
    ) -> Sums:
        """Returns this replica's parts of the sums of blocks that are quantized once.

        1. Divide each gradient into the n replicas' parts, each part into blocks, and fill up with
           zeros to as many blocks as the replica with the most has.
        2. Encode them, and send each replica those of its parts: (n-1)/n of the code's bytes.
        3. A replica decodes the n codes of its parts, and adds them up as float32.

        >>> from tfdp.compression import Int8, Sign
        >>> bucket, sharding = Bucket.of([127.0, -5.0, 0.0]), Sharding((3,), axis=0, bounds=(0, 3))
        >>> for each in (Int8(block=4), Sign(block=32)):
        ...     found = each.compressed_parts(bucket, [sharding], Transport(tf.identity))
        ...     print(found.sums[0].numpy().tolist())
        [127.0, -5.0, 0.0]
        [44.0, -44.0, 44.0]
        """
        count, rank, block = transport.world_size, transport.rank, self.block
        pairs = list(zip(bucket.gradients, shardings, strict=True))
        parts = [
            [tensor[sharding.index(other)] for tensor, sharding in pairs] for other in range(count)
        ]
        shapes = [[sharding.part_shape(other) for sharding in shardings] for other in range(count)]
        longest = max(sum(-(-math.prod(shape) // block) for shape in own) for own in shapes)
        blocks = tf.stack([_in_blocks(own, block, longest) for own in parts])
        sizes = tf.stack([_sizes(own, block, longest) for own in shapes])
        code = self._code(blocks, sizes, bucket, rank)
        total = tf.reduce_sum(self.decode(transport.exchange(code)), axis=0)
        of_ranks = zip(tf.unstack(self.decode(code), count), shapes, strict=True)
        sent = [_joined(of_rank, own) for of_rank, own in of_ranks]
        own = [
            tf.concat([of_rank[index] for of_rank in sent], sharding.axis)
            for index, sharding in enumerate(shardings)
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
