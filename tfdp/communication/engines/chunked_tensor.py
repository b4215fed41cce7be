"""A rank's buffer while a schedule runs: parts of it are read, added to and replaced."""

from collections.abc import Callable, Sequence
from typing import Any

from tfdp.topology.schedule import MOST_SLICES, slice_count


class ChunkedTensor:
    """A buffer whose parts change without a copy of the rest.

    Args:
      buffer: A tensor or array with one axis.
      size: The number of its elements.
      concat: Joins several tensors or arrays into one.

    >>> import numpy as np
    >>> pieces = ChunkedTensor(np.zeros(4), 4, np.concatenate)
    >>> pieces.add(slice(1, 3), np.ones(2))
    >>> pieces.put(slice(2, 4), np.full(2, 5.0))
    >>> pieces.read(slice(0, 4)).tolist()
    [0.0, 1.0, 5.0, 5.0]
    """

    def __init__(self, buffer: Any, size: int, concat: Callable[[Sequence[Any]], Any]) -> None:
        self._starts = [0]
        self._parts = [buffer]
        self._size = size
        self._concat = concat

    def read(self, where: slice) -> Any:
        """Returns the part in `where`, which must not be empty."""
        parts = []
        for index, (start, stop) in enumerate(self._bounds()):
            first, last = max(start, where.start), min(stop, where.stop)
            if first < last:
                whole = (first, last) == (start, stop)
                part = self._parts[index]
                parts.append(part if whole else part[first - start : last - start])
        return parts[0] if len(parts) == 1 else self._concat(parts)

    def add(self, where: slice, value: Any) -> None:
        """Adds `value` to the part in `where`."""
        for start, stop in self._cut(where):
            index = self._starts.index(start)
            whole = (start, stop) == (where.start, where.stop)
            part = value if whole else value[start - where.start : stop - where.start]
            self._parts[index] = self._parts[index] + part

    def put(self, where: slice, value: Any) -> None:
        """Replaces the part in `where` by `value`."""
        begun = [start for start, _ in self._cut(where)]
        first = self._starts.index(begun[0])
        self._starts[first : first + len(begun)] = [where.start]
        self._parts[first : first + len(begun)] = [value]

    def _bounds(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, [*self._starts[1:], self._size], strict=True))

    def _cut(self, where: slice) -> list[tuple[int, int]]:
        """Makes the ends of `where` boundaries, and returns the pieces between them."""
        for at in (where.start, where.stop):
            for index, (start, stop) in enumerate(self._bounds()):
                if start < at < stop:
                    part = self._parts[index]
                    self._starts.insert(index + 1, at)
                    self._parts[index : index + 1] = [part[: at - start], part[at - start :]]
                    break
        return [
            (start, stop)
            for start, stop in self._bounds()
            if where.start <= start and stop <= where.stop and start < stop
        ]


def slices(size: int, size_bytes: int, most: int = MOST_SLICES) -> list[tuple[int, int]]:
    """Returns the bounds of the slices of a buffer, `most` at most.

    >>> slices(1000, 4000), slices(2**20, 2**22)
    ([(0, 1000)], [(0, 262144), (262144, 524288), (524288, 786432), (786432, 1048576)])
    """
    count = slice_count(size_bytes, most)
    return [(size * i // count, size * (i + 1) // count) for i in range(count)]
