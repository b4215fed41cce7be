"""The shards of batches, variables and optimizer state that each rank holds. Pure Python.

A batch is sharded by one rule: of `size` examples each of `n` replicas takes `size // n`, and the
first `size % n` replicas take one more. The formulas use `+ - * // %` alone, so one text holds for
Python's numbers, for NumPy arrays and for tensors.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
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


#: What the strategy's `shard` divides, each with what comes before it.
SHARDS = ("optimizer", "gradients", "parameters")


@dataclasses.dataclass(frozen=True)
class Sharding:
    """The parts that one variable is sharded into along an axis, one for each rank.

    Attributes:
      shape: The shape of the variable.
      axis: The axis along which it is sharded.
      bounds: Where parts begin and end on that axis: rank r has `bounds[r]` to `bounds[r + 1]`.

    >>> sharding = Sharding((5, 3), axis=0, bounds=(0, 3, 5))
    >>> sharding.part_shape(1), sharding.size(1)
    ((2, 3), 6)
    """

    shape: tuple[int, ...]
    axis: int
    bounds: tuple[int, ...]

    def part_shape(self, rank: int) -> tuple[int, ...]:
        """Returns the shape of a rank's part.

        >>> Sharding((2, 3), axis=1, bounds=(0, 2, 3)).part_shape(0)
        (2, 2)
        """
        sizes = list(self.shape)
        sizes[self.axis] = self.bounds[rank + 1] - self.bounds[rank]
        return tuple(sizes)

    def size(self, rank: int) -> int:
        """Returns the number of elements of a rank's part.

        >>> Sharding((2, 3), axis=1, bounds=(0, 2, 3)).size(0)
        4
        """
        return math.prod(self.part_shape(rank))

    def index(self, rank: int) -> tuple[slice, ...]:
        """Returns what a whole array or tensor is indexed with for a rank's part.

        >>> Sharding((2, 3), axis=1, bounds=(0, 2, 3)).index(1)
        (slice(None, None, None), slice(2, 3, None))
        """
        return (*[slice(None)] * self.axis, slice(self.bounds[rank], self.bounds[rank + 1]))


class EvenSharding:
    """Shards variables, one after the other, into parts as even as one axis of each allows.

    What an axis leaves over goes to the ranks that hold least so far.

    Args:
      world_size: The number of ranks.

    >>> even = EvenSharding(2)
    >>> [even.next_sharding(shape).bounds for shape in [(3,), (4, 7), (3,)]]
    [(0, 2, 3), (0, 2, 4), (0, 1, 3)]
    """

    def __init__(self, world_size: int) -> None:
        self._held = [0] * world_size

    def next_sharding(self, shape: tuple[int, ...]) -> Sharding:
        """Returns the next variable's sharding; its shape has an axis and an element or more."""
        size = len(self._held)
        axis = min(range(len(shape)), key=lambda k: math.ceil(shape[k] / size) / shape[k])
        each, left = divmod(shape[axis], size)
        least = sorted(range(size), key=lambda rank: (self._held[rank], rank))[:left]
        counts = [each + (rank in least) for rank in range(size)]
        sharding = Sharding(shape, axis, (0, *itertools.accumulate(counts)))
        self._held = [held + sharding.size(rank) for rank, held in enumerate(self._held)]
        return sharding


def even_sharding(shapes: Sequence[tuple[int, ...]], world_size: int) -> list[Sharding]:
    """Shards variables as `EvenSharding` does, from the largest to the smallest.

    Args:
      shapes: The variables' shapes, each with an axis and an element or more.
      world_size: The number of ranks.

    Returns:
      A sharding for each variable, in their order.

    >>> [sharding.bounds for sharding in even_sharding([(3,), (4, 7), (3,)], 2)]
    [(0, 2, 3), (0, 2, 4), (0, 1, 3)]
    """
    shardings = EvenSharding(world_size)
    order = sorted(range(len(shapes)), key=lambda k: -math.prod(shapes[k]))
    found = {position: shardings.next_sharding(shapes[position]) for position in order}
    return [found[position] for position in range(len(shapes))]
