"""Uneven batches: the row counts of their leaves, and a padding row for replicas without any.

Which rows a replica has of one length is in `base.sharding`: see `share_place`. Batches are divided
by `replica_rows`, and those of a `tf.data.Dataset` by `data.distributed.batch_sharding`.

In semi-supervised training a batch of labelled examples comes beside one of more that have no
label; a graph of nodes has another number of edges. Most leaves, though, have one length, which
tracing may not know: these are taken for one batch, as long as that is so when the step runs.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfdp.base.sharding import share_place
from tfdp.communication.replicas import (
    BatchShard,
    FullBatchShard,
    TurnBatchShard,
    num_lengths,
    of_replica,
)


class RowCounts(NamedTuple):
    """The lengths of the leaves that are sharded.

    Attributes:
      known: What tracing knows of each, None where it is nothing; None: all have one length.
      numbers: The lengths, int32; one where all have that.
      of_turns: The numbers of examples of all replicas, int32, where each reads its own examples;
        None: they follow from the lengths.
      all_have_some: Whether every replica is known to have examples of all. One without has a row
        of another's in their place.
    """

    known: tuple[int | None, ...] | None
    numbers: tf.Tensor
    of_turns: tf.Tensor | None = None
    all_have_some: bool = False

    @classmethod
    def of(cls, shard: BatchShard) -> RowCounts:
        """Returns the lengths of which a replica's `BatchShard`, or that of all, tells."""
        place, known = of_replica(0, shard.place), of_replica(0, shard.known)
        is_full, count = isinstance(shard, FullBatchShard), num_lengths(known)
        with tf.device("CPU:0"):
            place = tf.cast(place, tf.int32)
            if isinstance(shard, TurnBatchShard):
                return cls(None, place[3:4], place[4:])
            if not count:
                return cls(None, place[3:4], all_have_some=is_full)
            lengths = tuple(None if length < 0 else length for length in known.lengths)
            found = cls(lengths, place[4 : 4 + count], all_have_some=is_full)
        return found.when_run() if tf.executing_eagerly() else found

    @property
    def are_known(self) -> bool:
        """Whether tracing knows which leaves are of one batch."""
        return self.known is None or None not in self.known[1:]

    def batches(self, count: int) -> tuple[int, ...]:
        """Returns of each of `count` leaves the number of its batch.

        Those of unknown lengths are taken for the batch of the first leaf, see `are_as_taken`.
        """
        if self.known is None:
            return (0,) * count
        numbers: dict[int | None, int] = {self.known[0]: 0}
        return tuple(
            0 if length is None else numbers.setdefault(length, len(numbers))
            for length in self.known
        )

    def are_as_taken(self) -> tf.Tensor:
        """Returns whether the leaves that are taken for one batch have one length."""
        assert self.known is not None
        unknown = [index for index, length in enumerate(self.known) if length is None]
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.gather(self.numbers, unknown) == self.numbers[0])

    def counts(self, count: int, num_replicas: int) -> tf.Tensor:
        """Returns for each batch of `count` leaves a row, the numbers of the replicas' examples."""
        with tf.device("CPU:0"):
            if self.of_turns is not None:
                return self.of_turns[tf.newaxis]
            batches = self.batches(count)
            first = [batches.index(each) for each in range(len(set(batches)))]
            lengths = tf.gather(self.numbers, tf.constant(first, tf.int32))[:, tf.newaxis]
            return share_place(lengths, num_replicas, tf.range(num_replicas))[1]

    def when_run(self) -> RowCounts:
        """Returns the lengths in a step that runs, where all are known."""
        return self._replace(known=tuple(self.numbers.numpy().tolist()))


def with_padding_row(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a replica; if there are none the first of `others`, or zeros."""
    if rows.dtype == tf.int32:
        # TensorFlow joins and chooses int32 in the host's memory, and floats where they are.
        bits = [tf.bitcast(each, tf.float32) for each in (rows, others)]
        return tf.bitcast(with_padding_row(*bits), tf.int32)
    shape = tf.concat([[1], tf.shape(rows)[1:]], 0)
    zeros = tf.zeros(shape, rows.dtype)
    found = tf.cond(tf.shape(rows)[0] > 0, lambda: rows, lambda: tf.concat([others, zeros], 0)[:1])
    if rows.shape.rank is None:
        return found
    return tf.ensure_shape(found, [None, *rows.shape[1:]])
