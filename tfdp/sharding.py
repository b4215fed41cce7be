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
    >>> cut.part_shape(1), cut.size(1)
    ((2, 3), 6)
    """

    shape: tuple[int, ...]
    axis: int
    bounds: tuple[int, ...]

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
