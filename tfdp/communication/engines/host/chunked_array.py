"""A rank's buffer in host memory while a schedule runs: its parts change without copies."""

import numpy as np


class ChunkedArray:
    """A rank's buffer while a schedule runs: each part lies in `own` or, once changed, in `result`.

    Nothing is copied but what is sent together with changed parts, and at the end what no phase
    has changed. `own` stays as it is.

    Args:
      own: What the rank holds before, an array with one axis.
      result: Where the values after the schedule are written, an array alike.

    >>> own, result = np.ones(4), np.empty(4)
    >>> parts = ChunkedArray(own, result)
    >>> parts.add(slice(1, 3), np.full(2, 2.0))
    >>> parts.read(slice(0, 1)).base is own, parts.read(slice(1, 2)).base is result
    (True, True)
    >>> parts.put(slice(2, 4), np.full(2, 7.0))
    >>> parts.finish()
    >>> result.tolist()
    [1.0, 3.0, 7.0, 7.0]
    """

    def __init__(self, own: np.ndarray, result: np.ndarray) -> None:
        self._own, self._result = own, result
        self._starts = [0]
        self._changed = [False]

    def read(self, where: slice) -> np.ndarray:
        """Returns a view of the part in `where`."""
        indices = self._cut(where)
        changed = [self._changed[index] for index in indices]
        if not any(changed):
            return self._own[where]
        for index in indices:
            self._take_over(index)
        return self._result[where]

    def landing(self, where: slice, replaces: bool) -> np.ndarray | None:
        """Returns where an arrival may be written, to be given to `add` or `put`; None: elsewhere.

        An arrival that is added has such a place only if the part was never changed. The part in
        `where` must not be read until the arrival is given back.
        """
        if not replaces and any(self._changed[index] for index in self._cut(where)):
            return None
        return self._result[where]

    def add(self, where: slice, value: np.ndarray) -> None:
        """Adds `value` to the part in `where`; it may lie in what `landing` returned."""
        for index in self._cut(where):
            piece = self._slice(index)
            arrived = value[piece.start - where.start : piece.stop - where.start]
            held = self._result if self._changed[index] else self._own
            np.add(held[piece], arrived, out=self._result[piece])
            self._changed[index] = True

    def put(self, where: slice, value: np.ndarray) -> None:
        """Replaces the part in `where` by `value`; it may lie in what `landing` returned."""
        if value.ctypes.data != self._result[where].ctypes.data:
            self._result[where] = value
        for index in self._cut(where):
            self._changed[index] = True

    def finish(self) -> None:
        """Copies the parts that no phase has changed to the result."""
        for index in range(len(self._starts)):
            self._take_over(index)

    def _take_over(self, index: int) -> None:
        if not self._changed[index]:
            piece = self._slice(index)
            self._result[piece] = self._own[piece]
            self._changed[index] = True

    def _slice(self, index: int) -> slice:
        stop = self._starts[index + 1] if index + 1 < len(self._starts) else self._own.size
        return slice(self._starts[index], stop)

    def _cut(self, where: slice) -> range:
        """Makes the ends of `where` boundaries, and returns the pieces between them."""
        for at in (where.start, where.stop):
            index = next(i for i in reversed(range(len(self._starts))) if self._starts[i] <= at)
            if self._starts[index] != at and at < self._own.size:
                self._starts.insert(index + 1, at)
                self._changed.insert(index + 1, self._changed[index])
        first = self._starts.index(where.start)
        inside = [start for start in self._starts[first:] if start < where.stop]
        return range(first, first + len(inside))
