"""Layouts: what each replica holds of a tensor of the one-device program."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.partition.sizes import Batch, FixedShard, SizeLike


@dataclasses.dataclass(frozen=True)
class Replicated:
    """The same whole value on every replica, with the same bits."""

    def __repr__(self) -> str:
        return "replicated"


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Along one axis each replica holds the entries of its examples, in their order.

    The axis has `outer * batch * inner` entries; example b owns those at [:, b, :]. A replica holds
    `outer * rows * inner` of them, where `rows` is the number of its examples. A replica without
    examples computes on one padding example, so `rows` is 1 there: what it adds to a sum must be
    zeros, and what it gives to a gather nothing.

    Attributes:
      axis: The axis, counted from 0.
      batch: The batch that is sharded.
      inner: The number of entries that follow each other for each example, where a reshape has
        merged the batch with what follows it.
      outer: The number of blocks, where it was merged with what precedes it, or joined with others.
    """

    axis: int
    batch: Batch
    inner: SizeLike = 1
    outer: SizeLike = 1

    @property
    def length(self) -> SizeLike:
        """The number of entries that the axis has in the global tensor."""
        return self.batch.length * self.inner * self.outer

    @property
    def is_fixed(self) -> bool:
        """Whether replicas hold parts of a variable, the same in all steps, and not of a batch."""
        return isinstance(self.batch, FixedShard)

    def at(self, axis: int) -> Sharded:
        return dataclasses.replace(self, axis=axis)

    def __repr__(self) -> str:
        parts = [f"axis {self.axis} by {self.batch}"]
        parts += [
            f"{name} {n}" for n, name in ((self.inner, "inner"), (self.outer, "outer")) if n != 1
        ]
        return f"sharded({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class Partial:
    """Each replica holds a partial: the value is the sum over the replicas."""

    def __repr__(self) -> str:
        return "partial"


@dataclasses.dataclass(frozen=True)
class Local:
    """Each replica's own value, where that is what is meant; it has no whole."""

    def __repr__(self) -> str:
        return "local"


@dataclasses.dataclass(frozen=True)
class Listed:
    """A tensor list, or an optional.

    Attributes:
      element: The layout of its elements; None while none was set, and of optionals.
      dtype: The dtype of its elements.
      kinds: What an optional may have, by dtype and rank: branches leave what they have made for
        their gradients in the same optionals, whatever it is. None: it is a list.
    """

    element: Replicated | Sharded | Partial | Local | Listed | None
    dtype: tf.DType
    kinds: tuple[tuple[tf.DType, int | None, Layout], ...] | None = None

    def value(self, dtype: tf.DType, rank: int | None) -> Layout | None:
        """Returns the layout of an optional's value of a dtype and rank; None: it has none such.

        Raises:
          ValueError: It may have several.
        """
        found = {
            each
            for kind, own, each in self.kinds or ()
            if kind == dtype and (own == rank or None in (own, rank))
        }
        if len(found) > 1:
            raise ValueError("what an optional has is sharded in ways that differ")
        return next(iter(found), None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to have been put into it."""
        return not self.kinds and self.element is None

    @property
    def is_whole(self) -> bool:
        """Whether all replicas have the same in it."""
        held = [self.element] if self.kinds is None else [each for *_, each in self.kinds]
        return all(
            each.is_whole if isinstance(each, Listed) else each in (None, REPLICATED)
            for each in held
        )

    def __repr__(self) -> str:
        if self.kinds is not None:
            return f"optional of {' or '.join(repr(each) for *_, each in self.kinds) or 'nothing'}"
        return f"list of {self.element or 'nothing yet'}"


Layout: TypeAlias = Replicated | Sharded | Partial | Local | Listed

REPLICATED, PARTIAL, LOCAL = Replicated(), Partial(), Local()


def layout_of_parts(sharding: Sharding) -> Sharded:
    """Returns the layout of what is sharded as a variable is.

    >>> layout_of_parts(Sharding((3, 5), axis=1, bounds=(0, 2, 5)))
    sharded(axis 1 by parts of 5)
    """
    return Sharded(sharding.axis, FixedShard(sharding.bounds))


def join(a: Layout, b: Layout) -> Layout:
    """Returns a layout that can hold either: what a branch or a loop gives.

    A whole value can become any other layout; two shardings that differ, or a sharding and a
    partial, become whole.

    >>> join(REPLICATED, PARTIAL), join(PARTIAL, Sharded(0, Batch("B")))
    (partial, replicated)
    """
    if a == b:
        return a
    if isinstance(a, Listed) and isinstance(b, Listed):
        return _joined_lists(a, b)
    if a == REPLICATED and not isinstance(b, Listed):
        return b
    if b == REPLICATED and not isinstance(a, Listed):
        return a
    if LOCAL in (a, b):
        return LOCAL
    return REPLICATED


def _joined_lists(a: Listed, b: Listed) -> Listed:
    """Returns a list, or an optional, that may hold what either holds.

    Where one is a list and the other an optional, nobody can tell which it is: all is replicated.
    """
    if a.is_empty or b.is_empty:
        return b if a.is_empty else a
    if a.kinds is not None and b.kinds is not None:
        return _joined_optionals(a, b)
    if a.element is None or b.element is None:
        return Listed(REPLICATED, tf.variant)
    return dataclasses.replace(a, element=_joined_held(a.element, b.element))


def _joined_held(a: Layout, b: Layout) -> Layout:
    """Returns what can hold either of what lists hold: a part and a whole may differ in size."""
    joined = join(a, b)
    return REPLICATED if a != b and isinstance(joined, Sharded) else joined


def _joined_optionals(a: Listed, b: Listed) -> Listed:
    kinds: dict[tuple[tf.DType, int | None], Layout] = {}
    for dtype, rank, layout in (*(a.kinds or ()), *(b.kinds or ())):
        kinds[dtype, rank] = _joined_held(kinds.get((dtype, rank), layout), layout)
    of_any_rank = {dtype for dtype, rank in kinds if rank is None}
    for dtype, rank in kinds:  # which of them a value is, is not known
        if dtype in of_any_rank and len({kinds[each] for each in kinds if each[0] == dtype}) > 1:
            kinds[dtype, rank] = REPLICATED
    return dataclasses.replace(a, kinds=tuple((*kind, each) for kind, each in kinds.items()))
