"""Which part of each variable's optimizer state each rank holds. Pure Python, no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Cut:
    """The parts that one variable is cut into along an axis, one for each rank.

    Attributes:
      shape: The shape of the variable.
      axis: The axis along which it is cut.
      bounds: Where parts begin and end on that axis: rank r has `bounds[r]` to `bounds[r + 1]`.

    >>> cut = Cut((5, 3), axis=0, bounds=(0, 3, 5))
    >>> cut.part_shape(1), cut.size(1), cut.owner
    ((2, 3), 6, None)
    """

    shape: tuple[int, ...]
    axis: int
    bounds: tuple[int, ...]

    @property
    def owner(self) -> int | None:
        """The rank that holds the whole variable; None if several hold parts.

        >>> Cut((5,), axis=0, bounds=(0, 0, 5)).owner
        1
        """
        held = [rank for rank, count in enumerate(self._counts()) if count]
        return held[0] if len(held) == 1 else None

    def part_shape(self, rank: int) -> tuple[int, ...]:
        """Returns the shape of a rank's part.

        >>> Cut((2, 3), axis=1, bounds=(0, 2, 3)).part_shape(0)
        (2, 2)
        """
        sizes = list(self.shape)
        sizes[self.axis] = self._counts()[rank]
        return tuple(sizes)

    def size(self, rank: int) -> int:
        """Returns the number of elements of a rank's part.

        >>> Cut((2, 3), axis=1, bounds=(0, 2, 3)).size(0)
        4
        """
        return math.prod(self.part_shape(rank))

    def index(self, rank: int) -> tuple[slice, ...]:
        """Returns what a whole array or tensor is indexed with for a rank's part.

        >>> Cut((2, 3), axis=1, bounds=(0, 2, 3)).index(1)
        (slice(None, None, None), slice(2, 3, None))
        """
        return (*[slice(None)] * self.axis, slice(self.bounds[rank], self.bounds[rank + 1]))

    def _counts(self) -> list[int]:
        return [end - begin for begin, end in itertools.pairwise(self.bounds)]


def even_cuts(shapes: Sequence[tuple[int, ...]], world_size: int) -> list[Cut]:
    """Cuts each variable into parts that are as even as one axis of it allows.

    What an axis leaves over goes to the ranks that hold least so far.

    Args:
      shapes: The variables' shapes, each with an axis and an element or more.
      world_size: The number of ranks.

    Returns:
      A cut for each variable, in their order.

    >>> [cut.bounds for cut in even_cuts([(3,), (4, 7), (3,)], 2)]
    [(0, 2, 3), (0, 2, 4), (0, 1, 3)]
    """
    held = [0] * world_size
    cuts: dict[int, Cut] = {}
    for position in sorted(range(len(shapes)), key=lambda k: -math.prod(shapes[k])):
        shape = shapes[position]
        axis = min(range(len(shape)), key=lambda k: math.ceil(shape[k] / world_size) / shape[k])
        each, left = divmod(shape[axis], world_size)
        least = sorted(range(world_size), key=lambda rank: (held[rank], rank))[:left]
        counts = [each + (rank in least) for rank in range(world_size)]
        cuts[position] = Cut(shape, axis, (0, *itertools.accumulate(counts)))
        for rank in range(world_size):
            held[rank] += cuts[position].size(rank)
    return [cuts[position] for position in range(len(shapes))]


def whole_cuts(
    shapes: Sequence[tuple[int, ...]], held: list[int], before: Sequence[int]
) -> list[Cut]:
    """Gives each variable whole to one rank: the largest first, to the rank that holds least.

    Args:
      shapes: The variables' shapes, each with an axis and an element or more.
      held: How many elements each rank holds so far of what is to be even; becomes those with the
        variables.
      before: How many each rank holds beside that: the least decides where others are equal.

    Returns:
      A cut for each variable, in their order, with an `owner`.

    >>> held = [0, 0]
    >>> [cut.owner for cut in whole_cuts([(3,), (4, 7), (3,)], held, before=[0, 0])], held
    ([1, 0, 1], [28, 6])
    >>> [cut.owner for cut in whole_cuts([(5, 2), (9,)], held, before=[0, 0])], held
    ([1, 1], [28, 25])
    >>> [cut.owner for cut in whole_cuts([(4,), (3,)], [0, 0], before=held)]
    [1, 0]
    """
    cuts: dict[int, Cut] = {}
    ranks = range(len(held))
    for position in sorted(range(len(shapes)), key=lambda k: -math.prod(shapes[k])):
        shape = shapes[position]
        owner = min(ranks, key=lambda rank: (held[rank], before[rank]))
        bounds = tuple(shape[0] if rank > owner else 0 for rank in range(len(held) + 1))
        cuts[position] = Cut(shape, 0, bounds)
        held[owner] += math.prod(shape)
    return [cuts[position] for position in range(len(shapes))]


def largest_share(held: Sequence[int]) -> float:
    """Returns the elements of the rank that holds most, over those of an even share.

    >>> largest_share([9, 3])
    1.5
    """
    return max(held) * len(held) / sum(held) if any(held) else 1.0
