"""The plan of an epoch: the shards of global batches for each replica, by index arithmetic."""

import dataclasses

import numpy as np

from tfdp.base.batch_shards import largest_share, share_place


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """The shares of some replicas in what is left of an epoch, batch by batch, rank by rank.

    Attributes:
      rows: Indices of examples, shape (batches * ranks, the most examples of a share). Beyond a
        share's size an index of the batch is repeated.
      places: The `share_place` of each row: the rank, the number of the row's examples that count,
        the number of examples of the batch before these, and the size of the batch; int64, shape
        (batches * ranks, 4).
    """

    rows: np.ndarray
    places: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples of each row that count, shape (batches * ranks,)."""
        return self.places[:, 1]


def num_batches(length: int, global_batch_size: int, drop_remainder: bool) -> int:
    """Returns the number of batches of `length` examples.

    >>> num_batches(10, 4, drop_remainder=False), num_batches(10, 4, drop_remainder=True)
    (3, 2)
    """
    return length // global_batch_size if drop_remainder else -(-length // global_batch_size)


def cut(
    order: np.ndarray,
    global_batch_size: int,
    drop_remainder: bool,
    num_replicas: int,
    ranks: range,
) -> ShardPlan:
    """Cuts what is left of an epoch.

    1. Every `global_batch_size` examples in turn are a batch; the last may be short.
    2. Each batch is cut into `num_replicas` runs, as even as can be, the first taking the rest.

    So the batches are the same for any number of replicas, and the shares of all ranks, one after
    the other, are the batch.

    Args:
      order: Indices of the examples that are left, shape (examples,).
      global_batch_size: The number of examples of a batch, all replicas together.
      drop_remainder: Whether to leave out a short last batch.
      num_replicas: The number of replicas in all processes.
      ranks: The ranks whose shares are wanted.

    Cost: a copy of the ranks' part of `order`.

    >>> shares = cut(np.arange(10), 4, False, num_replicas=2, ranks=range(1, 2))
    >>> [row[:size].tolist() for row, size in zip(shares.rows, shares.sizes)]
    [[2, 3], [6, 7], [9]]
    """
    whole, rest = divmod(len(order), global_batch_size)
    rows, places = _cut_equal(
        order[: whole * global_batch_size].reshape(whole, global_batch_size), num_replicas, ranks
    )
    if rest and not drop_remainder:
        last, last_places = _cut_equal(order[-rest:].reshape(1, rest), num_replicas, ranks)
        missing = largest_share(global_batch_size, num_replicas) - last.shape[1]
        last = np.pad(last, ((0, 0), (0, missing)), mode="edge")
        rows, places = np.concatenate([rows, last]), np.concatenate([places, last_places])
    return ShardPlan(rows, places)


def _cut_equal(
    batches: np.ndarray, num_replicas: int, ranks: range
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and places of batches of one size, shape (batches, size)."""
    size = batches.shape[1]
    places = share_place(size, num_replicas, np.arange(ranks.start, ranks.stop))
    _, _, starts, _ = places
    width = largest_share(size, num_replicas)
    # The columns after a share's end may lie beyond the batch, whose last column is then repeated.
    columns = np.minimum(starts[:, None] + np.arange(width), size - 1)
    rows = batches[:, columns].reshape(-1, width)
    of_one = np.stack(np.broadcast_arrays(*places), axis=1)
    return rows, np.tile(of_one, (len(batches), 1)).astype(np.int64)
