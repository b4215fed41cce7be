"""How the arguments of a call are cut into the parts of the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Irregular(NamedTuple):
    """A ragged or a sparse tensor of which the local replicas' rows are given.

    Attributes:
      first: The number of the argument that is its first component. A ragged tensor's are its
        values and then, from the outermost on, its splits; a sparse tensor's its indices, values
        and shape.
      depth: The number of a ragged tensor's splits; 0: it is sparse.
    """

    first: int
    depth: int

    @property
    def cut(self) -> range:
        """The arguments of which each replica has its own entries; the others are whole."""
        return range(self.first, self.first + (1 if self.depth else 2))

    @property
    def arguments(self) -> range:
        """The arguments that are its components."""
        return range(self.first, self.cut.stop + (self.depth or 1))


class ArgumentSharding(NamedTuple):
    """How the arguments of a call are cut.

    Attributes:
      batches: For each argument the number of the batch that its first axis is; None: it is given
        to each replica as it is. Arguments of the same number have the same length. Components of
        ragged and sparse tensors have the number of the rows' batch, or None if they tell of it.
      in_parts: For each argument whether it is given as the local replicas' parts.
      may_be_empty: Whether a replica may have no examples.
      of_shares: Whether the parts are the shares of batches whose lengths are given beside them.
      irregular: The ragged and sparse tensors that are given in parts.
    """

    batches: tuple[int | None, ...]
    in_parts: tuple[bool, ...]
    may_be_empty: bool
    of_shares: bool = False
    irregular: tuple[Irregular, ...] = ()

    @property
    def heads(self) -> list[int]:
        """The arguments that are cut, each ragged or sparse tensor once."""
        others = {index for each in self.irregular for index in each.arguments[1:]}
        cut = (index for index, number in enumerate(self.batches) if number is not None)
        return [index for index in cut if index not in others]

    @property
    def num_batches(self) -> int:
        """The number of batches."""
        return len({*self.batches} - {None})

    @property
    def are_regular(self) -> list[bool]:
        """Of each argument whether it is no component of a ragged or sparse tensor in parts."""
        others = {index for each in self.irregular for index in each.arguments}
        return [index not in others for index in range(len(self.batches))]

    def by(self, numbers: Sequence[int]) -> ArgumentSharding:
        """Returns the cut in which what is cut are batches of other numbers, one for each head."""
        batches = list(self.batches)
        for index, number in zip(self.heads, numbers, strict=True):
            batches[index] = number
        for each in self.irregular:
            for index in each.arguments:
                batches[index] = batches[each.first]
        return self._replace(batches=tuple(batches))

    def whole(self) -> ArgumentSharding:
        """Returns the cut that gives each replica all that is given whole."""
        kept = [
            number if parts else None
            for number, parts in zip(self.batches, self.in_parts, strict=True)
        ]
        return self._replace(batches=tuple(kept))
