"""The two halves of an all-reduce: each rank gets its part of a sum, and gives its part to all.

Cost: each half sends (n-1)/n of the tensors' bytes per rank where the ranks' parts are even, so
both together send what an all-reduce does. Rows are as long as the longest part: with uneven parts
a half sends more, up to what an all-reduce does, and where an all-reduce sends less there is one in
its place. So both halves together send twice an all-reduce's bytes at most.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.communication.collectives.payloads import Transport, packed, unpacked


def part_of(tensor: tf.Tensor, sharding: Sharding, rank: int) -> tf.Tensor:
    """Returns a rank's part of a whole tensor.

    >>> part_of(tf.constant([7, 8, 9]), Sharding((3,), 0, (0, 2, 3)), rank=1).numpy().tolist()
    [9]
    """
    return tf.ensure_shape(tensor[sharding.index(rank)], sharding.part_shape(rank))


def sum_parts(
    tensors: Sequence[tf.Tensor], shardings: Sequence[Sharding], transport: Transport
) -> list[tf.Tensor]:
    """Returns the caller's parts of the tensors' sums over all ranks (a reduce-scatter).

    Args:
      tensors: The caller's terms, whole, of one dtype.
      shardings: The sharding of each.
      transport: What sends.

    >>> alone = Transport(tf.identity)
    >>> sharding = Sharding((2,), 0, (0, 2))
    >>> [own.numpy().tolist() for own in sum_parts([tf.range(2)], [sharding], alone)]
    [[0, 1]]
    """
    rank, world_size = transport.rank, transport.world_size
    totals = _totals(shardings, world_size)
    if not _is_even(totals):
        wholes = unpacked(transport.sum(packed(tensors)), tensors)
        return [
            part_of(whole, sharding, rank)
            for whole, sharding in zip(wholes, shardings, strict=True)
        ]
    if _are_rows(shardings):
        own = [tf.reshape(tensor, [world_size, -1]) for tensor in tensors]
        return _split(transport.sum_rows(_joined(own, 1)), shardings, rank)
    rows = []
    for other in range(world_size):
        pairs = zip(tensors, shardings, strict=True)
        own = [tf.reshape(part_of(tensor, sharding, other), [-1]) for tensor, sharding in pairs]
        rows.append(_padded(_joined(own, 0), totals[other], max(totals)))
    return _split(transport.sum_rows(tf.stack(rows)), shardings, rank)


def gather_parts(
    parts: Sequence[tf.Tensor], shardings: Sequence[Sharding], transport: Transport
) -> list[tf.Tensor]:
    """Returns the whole tensors of which each rank gives its parts (an all-gather).

    Args:
      parts: The caller's parts, of one dtype.
      shardings: The sharding of each.
      transport: What sends.

    >>> alone = Transport(tf.identity)
    >>> [whole.numpy().tolist() for whole in gather_parts(
    ...     [tf.range(2)], [Sharding((2,), 0, (0, 2))], alone)]
    [[0, 1]]
    """
    world_size = transport.world_size
    totals = _totals(shardings, world_size)
    own = _joined([tf.reshape(part, [-1]) for part in parts], 0)
    if _are_rows(shardings):
        gathered = transport.gather(own)
        sizes = [sharding.size(0) for sharding in shardings]
        pieces = [gathered] if len(shardings) == 1 else tf.split(gathered, sizes, axis=1)
        return [
            tf.reshape(piece, sharding.shape)
            for piece, sharding in zip(pieces, shardings, strict=True)
        ]
    if _is_even(totals):
        gathered = transport.gather(_padded(own, totals[transport.rank], max(totals)))
        rows = tf.unstack(gathered, world_size)
    else:
        # The others add zeros to what the rank has.
        at = sum(totals[: transport.rank])
        padding = [[at, sum(totals) - at - totals[transport.rank]]]
        rows = tf.split(transport.sum(tf.pad(own, padding)), totals)
    of_ranks = [_split(row, shardings, rank) for rank, row in enumerate(rows)]
    return [
        tf.concat([pieces[index] for pieces in of_ranks], sharding.axis)
        for index, sharding in enumerate(shardings)
    ]


def _totals(shardings: Sequence[Sharding], world_size: int) -> list[int]:
    return [sum(sharding.size(rank) for sharding in shardings) for rank in range(world_size)]


def _is_even(totals: Sequence[int]) -> bool:
    """Returns whether rows as long as the longest part send no more than an all-reduce."""
    return max(totals) * len(totals) <= 2 * sum(totals)


def _are_rows(shardings: Sequence[Sharding]) -> bool:
    """Returns whether ranks have as many whole rows each, so that parts one after the other are
    the tensor. No copy is made then, unless several travel together.
    """
    return all(
        sharding.axis == 0 and len({*map(sharding.size, _ranks(sharding))}) == 1
        for sharding in shardings
    )


def _ranks(sharding: Sharding) -> range:
    return range(len(sharding.bounds) - 1)


def _joined(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)


def _padded(own: tf.Tensor, size: int, longest: int) -> tf.Tensor:
    return own if size == longest else tf.pad(own, [[0, longest - size]])


def _split(row: tf.Tensor, shardings: Sequence[Sharding], rank: int) -> list[tf.Tensor]:
    sizes = [sharding.size(rank) for sharding in shardings]
    own = row if row.shape[0] == sum(sizes) else row[: sum(sizes)]
    pieces = [own] if len(sizes) == 1 else tf.split(own, sizes)
    return [
        tf.reshape(piece, sharding.part_shape(rank))
        for piece, sharding in zip(pieces, shardings, strict=True)
    ]
