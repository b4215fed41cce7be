"""The shard of a variable, or of its optimizer state, that each rank holds. Pure Python."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

#: What the strategy's `shard` cuts, each with what comes before it.
SHARDS = ("optimizer", "gradients", "parameters")


@dataclasses.dataclass(frozen=True)
class Sharding:
    """The parts that one variable is cut into along an axis, one for each rank.

    Attributes:
      shape: The shape of the variable.
      axis: The axis along which it is cut.
      bounds: Where parts begin and end on that axis: rank r has `bounds[r]` to `bounds[r + 1]`.

    >>> cut = Sharding((5, 3), axis=0, bounds=(0, 3, 5))
    >>> cut.part_shape(1), cut.size(1)
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
    """Cuts variables, one after the other, into parts as even as one axis of each allows.

    What an axis leaves over goes to the ranks that hold least so far.

    Args:
      world_size: The number of ranks.

    >>> cuts = EvenSharding(2)
    >>> cuts.cut((3,)).bounds, cuts.cut((4, 7)).bounds, cuts.cut((3,)).bounds
    ((0, 2, 3), (0, 2, 4), (0, 1, 3))
    """

    def __init__(self, world_size: int) -> None:
        self._held = [0] * world_size

    def cut(self, shape: tuple[int, ...]) -> Sharding:
        """Returns the cut of the next variable, whose shape has an axis and an element or more."""
        size = len(self._held)
        axis = min(range(len(shape)), key=lambda k: math.ceil(shape[k] / size) / shape[k])
        each, left = divmod(shape[axis], size)
        least = sorted(range(size), key=lambda rank: (self._held[rank], rank))[:left]
        counts = [each + (rank in least) for rank in range(size)]
        cut = Sharding(shape, axis, (0, *itertools.accumulate(counts)))
        self._held = [held + cut.size(rank) for rank, held in enumerate(self._held)]
        return cut


def even_sharding(shapes: Sequence[tuple[int, ...]], world_size: int) -> list[Sharding]:
    """Cuts variables as `EvenSharding` does, from the largest to the smallest.

    Args:
      shapes: The variables' shapes, each with an axis and an element or more.
      world_size: The number of ranks.

    Returns:
      A cut for each variable, in their order.

    >>> [cut.bounds for cut in even_sharding([(3,), (4, 7), (3,)], 2)]
    [(0, 2, 3), (0, 2, 4), (0, 1, 3)]
    """
    cuts = EvenSharding(world_size)
    order = sorted(range(len(shapes)), key=lambda k: -math.prod(shapes[k]))
    found = {position: cuts.cut(shapes[position]) for position in order}
    return [found[position] for position in range(len(shapes))]
