"""The arrays that a program returns and passes on from call to call."""

from typing import Any

import numpy as np
from jax.sharding import NamedSharding

from tfdp.strategy.xla.device_arrays import placed
from tfdp.strategy.xla.packed_arguments import Packing


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
        self._parts: dict[int, list[np.ndarray]] = {}  # of vectors, on the host
        self._there: set[int] = set()  # the places of joined arrays that are there by themselves
        self._changed: set[int] = set()  # groups of which one is not what the vector has

    def array(self, place: int) -> Any:
        """Returns the array at a place."""
        number = self._group_of.get(place)
        if number is not None and place not in self._there and self._vectors[number] is not None:
            part = self._parts_of(number)[place - self._packing.groups[number].start]
            (self._arrays[place],) = placed([part], [self._layout])
            self._there.add(place)
        return self._arrays[place]

    def put(self, place: int, array: Any) -> None:
        """Puts an array to a place, for the next call."""
        number = self._group_of.get(place)
        if number is not None:
            self._there.add(place)
            self._changed.add(number)
        self._arrays[place] = array

    def drop(self, place: int) -> None:
        """Drops the array at a stale place, so that its memory is free once its variable's is."""
        if place not in self._group_of:
            self._arrays[place] = None

    def given(self) -> tuple[list[Any], list[Any]]:
        """Returns what the program is called with: that which it writes, and the rest."""
        for number in self._changed:
            (self._vectors[number],) = placed([self._joined(number)], [self._layout])
            self._parts.pop(number, None)
        self._changed.clear()
        alone = self._packing.alone
        return [*self._vectors, *self._arrays[alone.start : alone.stop]], self._arrays[alone.stop :]

    def returned(self, news: list[Any]) -> None:
        """Keeps what the program has returned in place of what it writes."""
        alone = self._packing.alone
        self._vectors[:] = news[: len(self._vectors)]
        self._arrays[alone.start : alone.stop] = news[len(self._vectors) :]
        for place in self._there:
            self._arrays[place] = None
        self._there.clear()
        self._parts.clear()

    def _joined(self, number: int) -> Any:
        """Returns what a group's vector must be, on the host."""
        values = [
            np.asarray(self._arrays[place])
            if place in self._there
            else self._parts_of(number)[place - self._packing.groups[number].start]
            for place in self._packing.groups[number]
        ]
        return self._packing.vector(values, np)

    def _parts_of(self, number: int) -> list[np.ndarray]:
        """Returns the arrays of a group as its vector has them, on the host."""
        if number not in self._parts:
            vector = np.array(self._vectors[number])  # a copy: the next step writes in place
            self._parts[number] = self._packing.parts(number, vector, np)
        return self._parts[number]
