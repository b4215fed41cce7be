"""What a program goes on with from call to call: the arrays that it has returned."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from tfdp.xla.arrays import placed
from tfdp.xla.packing import Packing


class Holding:
    """The arrays of all that a program captures, by their places, some of them joined.

    First come the places that the program writes, in the order of the packing. A joined array is
    there by itself only if somebody has asked for it, or put it there, since the last call.

    Args:
      size: The number of places.
      packing: Of the arrays that the program writes.
      layout: The layout of joined arrays.

    Attributes:
      stale: The places whose arrays must be put there anew, by whoever has them.
    """

    def __init__(self, size: int, packing: Packing, layout: NamedSharding) -> None:
        self.stale = set(range(size))
        self._packing, self._layout = packing, layout
        self._arrays: list[Any] = [None] * size
        self._vectors: list[Any] = [None] * len(packing.groups)
        self._group_of = {
            place: number for number, group in enumerate(packing.groups) for place in group
        }
        self._parted: set[int] = set()  # groups whose arrays are there by themselves
        self._changed: set[int] = set()  # those of which one is not what the vector has

    def array(self, place: int) -> Any:
        """Returns the array at a place."""
        if place in self._group_of:
            self._part(self._group_of[place])
        return self._arrays[place]

    def put(self, place: int, array: Any) -> None:
        """Puts an array to a place, for the next call."""
        group = self._group_of.get(place)
        if group is not None:
            self._part(group)
            self._changed.add(group)
        self._arrays[place] = array

    def given(self) -> tuple[list[Any], list[Any]]:
        """Returns what the program is called with: that which it writes, and the rest."""
        for number in self._changed:
            group = self._packing.groups[number]
            values = list(map(np.asarray, self._arrays[group.start : group.stop]))
            (self._vectors[number],) = placed([self._packing.vector(values, np)], [self._layout])
        self._changed.clear()
        alone = self._packing.alone
        return [*self._vectors, *self._arrays[alone.start : alone.stop]], self._arrays[alone.stop :]

    def returned(self, news: list[Any]) -> None:
        """Keeps what the program has returned in place of what it writes."""
        alone = self._packing.alone
        self._vectors[:] = news[: len(self._vectors)]
        self._arrays[alone.start : alone.stop] = news[len(self._vectors) :]
        for number in self._parted:
            group = self._packing.groups[number]
            self._arrays[group.start : group.stop] = [None] * len(group)
        self._parted.clear()

    def _part(self, number: int) -> None:
        """Has the arrays of a group there by themselves, if there are any yet."""
        if number in self._parted:
            return
        self._parted.add(number)
        if self._vectors[number] is None:
            return
        vector = np.array(self._vectors[number])  # a copy: the next step writes in place
        group = self._packing.groups[number]
        parts = self._packing.parts(number, vector, np)
        self._arrays[group.start : group.stop] = placed(parts, [self._layout] * len(group))
