"""The sharding of a call's arguments over the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import tensorflow as tf

from tfdp.partition import REPLICATED, Batch, Layout, Sharded


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
    def sharded(self) -> range:
        """The arguments of which each replica has its own entries; the others are whole."""
        return range(self.first, self.first + (1 if self.depth else 2))

    @property
    def arguments(self) -> range:
        """The arguments that are its components."""
        return range(self.first, self.sharded.stop + (self.depth or 1))


class ArgumentSharding(NamedTuple):
    """How the arguments of a call are sharded.

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
        """The arguments that are sharded, each ragged or sparse tensor once."""
        others = {index for each in self.irregular for index in each.arguments[1:]}
        sharded = (index for index, number in enumerate(self.batches) if number is not None)
        return [index for index in sharded if index not in others]

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
        """Returns this sharding with the batches renumbered, one for each head."""
        batches = list(self.batches)
        for index, number in zip(self.heads, numbers, strict=True):
            batches[index] = number
        for each in self.irregular:
            for index in each.arguments:
                batches[index] = batches[each.first]
        return self._replace(batches=tuple(batches))

    def whole(self) -> ArgumentSharding:
        """Returns the sharding that gives each replica all that is given whole."""
        kept = [
            number if parts else None
            for number, parts in zip(self.batches, self.in_parts, strict=True)
        ]
        return self._replace(batches=tuple(kept))


class ArgumentLayouts(NamedTuple):
    """The layouts of a program's arguments, as they are sharded.

    Attributes:
      sharding: How they are sharded. Shares of batches hold a row also where only this replica has
        no example. How many examples all replicas have of each batch is the first argument of a
        call then.
      specs: Their specifications.
      layouts: Their layouts.
      batches: The batches that they are sharded by, by the numbers that `sharding` gives them.
    """

    sharding: ArgumentSharding
    specs: Sequence[tf.TensorSpec]
    layouts: Sequence[Layout]
    batches: Mapping[int, Batch]

    @classmethod
    def of(cls, sharding: ArgumentSharding, specs: Sequence[tf.TensorSpec]) -> Self:
        """Returns the layouts that a sharding gives arguments of these specifications."""
        made: dict[int, Batch] = {}
        found: list[Layout] = []
        for spec, number, regular in zip(
            specs, sharding.batches, sharding.are_regular, strict=True
        ):
            if number is None:
                found.append(REPLICATED)
                continue
            if number not in made:
                made[number] = Batch(f"batch_{number}", spec.shape[0] if regular else None)
            found.append(Sharded(0, made[number]) if regular else REPLICATED)
        for each in sharding.irregular:
            entries = Batch(f"entries_{each.first}")
            for index in each.sharded:
                found[index] = Sharded(0, entries)
        return cls(sharding, specs, found, made)

    @property
    def may_be_empty(self) -> bool:
        """Whether a replica's rows may be without values."""
        return self.sharding.may_be_empty or bool(self.sharding.irregular)

    @property
    def irregular(self) -> list[tuple[Irregular, Batch]]:
        """The ragged and sparse tensors, each with the batch that its rows are."""
        return [
            (each, self.batches[number])
            for each in self.sharding.irregular
            if (number := self.sharding.batches[each.first]) is not None
        ]

    def along(
        self, arguments: Sequence[Sequence[tf.Tensor]]
    ) -> Iterator[tuple[Layout, Sequence[tf.Tensor], bool, bool]]:
        """Yields of each argument the layout, its parts, and whether it is in parts and regular."""
        sharding = self.sharding
        return zip(self.layouts, arguments, sharding.in_parts, sharding.are_regular, strict=True)

    def signature(self, num_local: int) -> list[list[tf.TensorSpec]]:
        """Returns of each argument the specifications of its parts on so many local replicas."""
        return [
            [_of_part(spec)] * num_local if in_parts else [spec]
            for spec, in_parts in zip(self.specs, self.sharding.in_parts, strict=True)
        ]


def _of_part(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the specification of a replica's part of a tensor, which has other rows."""
    if not spec.shape.rank:
        return spec
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
