"""A schedule's transfers on TensorFlow's runtime: sends, receives, and sums of what arrives.

A buffer is cut into slices that go through the schedule independently of each other: while one is
added up, another is on its way.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdp.communication.engines.chunked_tensor import ChunkedTensor, slices
from tfdp.topology import Exchange, Schedule, Transfer

if TYPE_CHECKING:
    from tfdp.communication.engines.tensorflow_engine import TensorFlowEngine


def run(
    engine: TensorFlowEngine,
    schedule: Schedule,
    exchanges: Sequence[Exchange],
    tensor: tf.Tensor,
) -> tf.Tensor:
    """Returns the caller's buffer after `exchanges`, phases of `schedule` that follow each other.

    Args:
      engine: Moves the pieces.
      schedule: Says where chunks lie.
      exchanges: Some of its phases, in their order.
      tensor: The buffer that the caller holds before them; its shape must be known.
    """
    size = tensor.shape.num_elements()
    if size == 0:
        return tf.identity(tensor)
    bounds = slices(size, size * tensor.dtype.size)
    keys = sum(len(exchange.transfers) for exchange in exchanges)

    def transfer_all(tensor: tf.Tensor, rank: int, key: int) -> tf.Tensor:
        flat = tf.reshape(tensor, [-1])
        sends: list[tf.Operation] = []
        sums = []
        for start, stop in bounds:
            pieces = ChunkedTensor(
                flat[start:stop], stop - start, functools.partial(tf.concat, axis=0)
            )
            for exchange in exchanges:
                where = functools.partial(_where, schedule, stop - start)
                sends += _exchange(engine, exchange, pieces, where, rank, key)
                key += len(exchange.transfers)
            sums.append(pieces.read(slice(0, stop - start)))
        with tf.control_dependencies(sends):
            summed = tf.identity(sums[0] if len(sums) == 1 else tf.concat(sums, axis=0))
        return tf.reshape(summed, tensor.shape)

    # The digest names the transfers: in a cluster, calls of one name get the same keys again.
    digest = zlib.crc32(repr((schedule.chunks, exchanges)).encode())
    kind = f"all_reduce in {len(exchanges)} exchanges ({digest:08x})"
    return engine.together(transfer_all, kind, tensor, keys * len(bounds))


def _where(schedule: Schedule, size: int, transfer: Transfer) -> slice | None:
    where = schedule.slice_of(transfer.chunks, size)
    return where if where.start < where.stop else None


def _exchange(
    engine: TensorFlowEngine,
    exchange: Exchange,
    pieces: ChunkedTensor,
    where_of: Callable[[Transfer], slice | None],
    rank: int,
    first_key: int,
) -> list[tf.Operation]:
    """Changes `pieces` as `exchange` says, and returns the sends."""
    keys = {transfer: first_key + i for i, transfer in enumerate(exchange.transfers)}
    sends, arrivals = [], []
    for transfer in exchange.sent_by(rank):
        where = where_of(transfer)
        if where is not None:
            piece = pieces.read(where)
            sends.append(engine.send(piece, rank, transfer.target, keys[transfer]))
    for transfer in exchange.received_by(rank):
        where = where_of(transfer)
        if where is not None:
            like = pieces.read(where)
            value = engine.receive(like, transfer.source, rank, keys[transfer])
            arrivals.append((pieces.add if transfer.reduce else pieces.put, where, value))
    for change, where, value in arrivals:
        change(where, value)
    return sends
