"""Small arrays of a program, which go in and come out joined, some in one.

For each array that a program takes and returns JAX does the same work on the host, 2.6 us, of which
Python's garbage collection is a part: for 600 small variables and their moments more than the
program computes. Joined they cost two copies, in the program. XLA takes longer to compile one that
joins many at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Larger ones are few beside what they hold, and copies of them cost memory's time.
LARGEST_BYTES = 2**12

AT_MOST = 16


class Packing:
    """Which arrays of a program are joined: successive ones, by their places among all.

    Args:
      likes: The arrays' shapes and dtypes, such as `jax.ShapeDtypeStruct`.
      at_most: How many are joined in one; 1: none are.

    Attributes:
      order: The places of `likes` in the order in which arrays are packed: joined ones come first.
      groups: The places in this order that are joined, each a range.
      alone: The places after these.

    >>> like = [np.zeros(shape, dtype) for shape, dtype in (
    ...     ([2, 2], "float32"), ([], "int64"), ([100, 100], "float32"), ([3], "float32"))]
    >>> packing = Packing(like)
    >>> packing.order, packing.groups, packing.alone
    ([0, 3, 1, 2], [range(0, 2)], range(2, 4))
    >>> packed = packing.packed([like[index] for index in packing.order], np)
    >>> [each.shape for each in packed]
    [(7,), (), (100, 100)]
    >>> [each.shape for each in packing.unpacked(packed, np)]
    [(2, 2), (3,), (), (100, 100)]
    """

    def __init__(self, likes: Sequence[Any], at_most: int = AT_MOST) -> None:
        small: dict[Any, list[int]] = {}
        for index, like in enumerate(likes):
            if int(np.prod(like.shape)) * np.dtype(like.dtype).itemsize <= LARGEST_BYTES:
                small.setdefault(np.dtype(like.dtype), []).append(index)
        groups = [
            each[first : first + at_most]
            for each in small.values()
            for first in range(0, len(each), at_most)
        ]
        joined = [each for each in groups if len(each) > 1]
        first = [index for each in joined for index in each]
        self.order = [*first, *sorted(set(range(len(likes))) - set(first))]
        self._shapes = [tuple(likes[index].shape) for index in self.order]
        ends = np.cumsum([0, *map(len, joined)]).tolist()
        self.groups = list(map(range, ends, ends[1:]))
        self.alone = range(len(first), len(likes))

    def packed(self, values: Sequence[Any], numpy: Any) -> list[Any]:
        """Returns a vector for each group, and the arrays that are alone.

        Args:
          values: All arrays, in this order.
          numpy: What has them: `numpy`, or `jax.numpy` in a traced function.
        """
        vectors = [self.vector(values[each.start : each.stop], numpy) for each in self.groups]
        return [*vectors, *values[self.alone.start :]]

    def unpacked(self, packed: Sequence[Any], numpy: Any) -> list[Any]:
        """Returns all arrays of what `packed` has returned."""
        count = len(self.groups)
        parts = [self.parts(group, packed[group], numpy) for group in range(count)]
        return [*(part for each in parts for part in each), *packed[count:]]

    def vector(self, values: Sequence[Any], numpy: Any) -> Any:
        """Returns the arrays of a group, joined."""
        return numpy.concatenate([numpy.reshape(value, (-1,)) for value in values])

    def parts(self, group: int, vector: Any, numpy: Any) -> list[Any]:
        """Returns the arrays of a group, by its number, that are joined in a vector."""
        shapes = [self._shapes[place] for place in self.groups[group]]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        found = numpy.split(vector, ends[:-1].tolist())
        return [numpy.reshape(part, shape) for part, shape in zip(found, shapes, strict=True)]
