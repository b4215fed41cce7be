"""A number of replicas that notices which batches were made from it."""

from __future__ import annotations

from typing import Any


class ReplicaCount(int):
    """An int; products with other ints are ints, and are noted.

    A program whose batch is `64 * strategy.num_replicas_in_sync` trains with another batch on
    other hardware, and its learning rate should follow: `fit` asks here whether its batch is such.

    >>> products = {}
    >>> 64 * ReplicaCount(4, products), products
    (256, {256: 64})
    """

    _products: dict[int, int]

    def __new__(cls, value: int, products: dict[int, int]) -> ReplicaCount:
        """Makes an int that writes its products, and the other factor of each, to `products`."""
        self = super().__new__(cls, value)
        self._products = products
        return self

    def __mul__(self, other: Any) -> Any:
        product = int(self) * other
        if type(product) is int and self > 1:
            self._products[product] = int(other)
        return product

    __rmul__ = __mul__

    def __reduce__(self) -> Any:
        return int, (int(self),)
