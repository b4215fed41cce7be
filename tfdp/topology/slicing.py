"""The slices of a buffer, which go through a schedule's exchanges independently of each other."""

from __future__ import annotations

MOST_SLICES = 4
_LEAST_SLICE_BYTES = 2**20


def slice_count(size_bytes: float) -> int:
    """Returns the number of slices of a buffer: while one is added up, another is on its way.

    >>> slice_count(4000), slice_count(2 * 2**20), slice_count(2**30)
    (1, 2, 4)
    """
    return max(1, min(MOST_SLICES, int(size_bytes // _LEAST_SLICE_BYTES)))
