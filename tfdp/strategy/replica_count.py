"""A number of replicas that notices which batches were made from it."""

from __future__ import annotations

import dataclasses
from typing import Any

_MOST_PRODUCTS = 64


@dataclasses.dataclass
class Uses:
    """What a program has made of the number of replicas.

    Attributes:
      products: The last products with ints, each with its other factor.
      unknown: How many of the numbers that were given out are still kept, or went where it cannot
        be seen: one may have scaled the learning rate.
      warned: What has been said of it.
    """

    products: dict[int, int] = dataclasses.field(default_factory=dict)
    unknown: int = 0
    warned: set[str] = dataclasses.field(default_factory=set)

    def add(self, product: int, factor: int) -> None:
        """Notes a product; the oldest of many is forgotten."""
        self.products[product] = factor
        if len(self.products) > _MOST_PRODUCTS:
            del self.products[next(iter(self.products))]


class ReplicaCount(int):
    """An int; its products with other ints are ints, and are noted.

    A program whose batch is `64 * strategy.num_replicas_in_sync` trains with another batch on
    other hardware, and its learning rate should follow. `fit` asks here whether its batch is such,
    and whether the number went anywhere else: `0.1 * n` cannot be seen, but that `n` was used, or
    is kept in a variable, can.

    >>> uses = Uses()
    >>> 64 * ReplicaCount(4, uses), uses.products, uses.unknown
    (256, {256: 64}, 0)
    """

    _uses: Uses
    _explained: bool

    def __new__(cls, value: int, uses: Uses) -> ReplicaCount:
        """Makes an int that reports to `uses`."""
        self = super().__new__(cls, value)
        self._uses, self._explained = uses, False
        uses.unknown += 1
        return self

    def __del__(self) -> None:
        if self._explained:
            self._uses.unknown -= 1

    def __mul__(self, other: Any) -> Any:
        product = int(self) * other
        if type(product) is int:
            self._explained = True
            if self > 1:
                self._uses.add(product, int(other))
        return product

    __rmul__ = __mul__

    def __format__(self, spec: str) -> str:
        self._explained = True
        return format(int(self), spec)

    def __repr__(self) -> str:
        self._explained = True
        return repr(int(self))

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return int, (int(self),)
