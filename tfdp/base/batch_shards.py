"""The one rule by which a batch is sharded: runs of examples, of which the first take the rest.

Of `size` examples each of `n` replicas takes `size // n`, and the first `size % n` replicas take
one more. The formulas use `+ - * // %` alone, so one text holds for Python's numbers, for NumPy
arrays and for tensors.
"""

from typing import Any


def share_place(size: Any, num_replicas: int, rank: Any) -> tuple[Any, Any, Any, Any]:
    """Returns the place of a replica's share in its batch.

    `(rest - rank + n - 1) // n` is 1 for the ranks below `rest` and 0 for the others, since both
    numbers lie between 0 and n - 1. So `rest + (rank - rest) * takes_one` is the smaller of both:
    the number of the ranks before this one that take one more.

    Args:
      size: The number of examples of the batch: a number, or an array or tensor of integers.
      num_replicas: The number of replicas in all processes.
      rank: The replica's rank: a number, array or tensor; arrays give the places of several.

    Returns:
      The rank, the number of its examples, the number of those before them, and the size: the
      numbers that `BatchShard.place` holds.

    >>> [share_place(6, 4, rank) for rank in range(4)]
    [(0, 2, 0, 6), (1, 2, 2, 6), (2, 1, 4, 6), (3, 1, 5, 6)]
    """
    least, rest = size // num_replicas, size % num_replicas
    takes_one = (rest - rank + num_replicas - 1) // num_replicas
    start = rank * least + rest + (rank - rest) * takes_one
    return rank, least + takes_one, start, size


def share_sizes(size: int, num_replicas: int) -> list[int]:
    """Returns the number of examples of each replica.

    >>> share_sizes(6, 4)
    [2, 2, 1, 1]
    """
    return [share_place(size, num_replicas, rank)[1] for rank in range(num_replicas)]


def largest_share(size: int, num_replicas: int) -> int:
    """Returns the number of examples of the largest share, which is the first.

    >>> largest_share(6, 4)
    2
    """
    count: int = share_place(size, num_replicas, 0)[1]
    return count
