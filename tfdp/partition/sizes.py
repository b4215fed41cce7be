"""Arithmetic on sizes that are known when the step runs: polynomials of the lengths of batches.

A size is an `int` where tracing knows it, else a `Size`: a sum of products of symbols with whole
coefficients. What is no such sum, such as `min(B, 64)` or `B // 2`, is `UNKNOWN`: nothing is
guessed of it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

_numbers = itertools.count()


class Symbol:
    """A size that is known when the step runs; it is what it is by identity.

    Attributes:
      name: Names it in reports.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._number = next(_numbers)

    def __repr__(self) -> str:
        return self.name

    def __lt__(self, other: Symbol) -> bool:
        return self._number < other._number


class Batch(Symbol):
    """A batch, of which each replica has a run of examples; as a symbol, its length.

    Attributes:
      length: The number of its examples: itself, or the number that the program fixes.

    >>> images = Batch("images")
    >>> images.length * 28, Batch("fixed", 8).length
    (28*images, 8)
    """

    def __init__(self, name: str, length: int | None = None) -> None:
        super().__init__(name)
        self.length: SizeLike = Size.of(self) if length is None else length


class FixedShard(Batch):
    """An axis of a variable of which each replica holds a part for good, with one entry or more.

    Args:
      bounds: Where parts begin and end: replica r has the entries `bounds[r]` to `bounds[r + 1]`.
    """

    def __init__(self, bounds: tuple[int, ...]) -> None:
        super().__init__(f"parts of {bounds[-1]}", bounds[-1])
        self.bounds = bounds


@functools.cache
def fixed_shard(bounds: tuple[int, ...]) -> FixedShard:
    """Returns the sharding at these bounds: the same for all axes that are sharded so.

    >>> fixed_shard((0, 2, 5)).length, fixed_shard((0, 2, 5)) is fixed_shard((0, 2, 5))
    (5, True)
    """
    return FixedShard(bounds)


class Unknown:
    """What is known of a number that is no polynomial of lengths: nothing."""

    def _unknown(self, *_: Any) -> Unknown:
        return UNKNOWN

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unknown

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()


class AtLeast(Unknown):
    """A number of which is known that it is a size or more.

    Attributes:
      least: The size.
    """

    def __init__(self, least: SizeLike) -> None:
        self.least = least


class Size:
    """A polynomial of symbols with whole coefficients, which is no constant.

    Sums, differences and products with sizes are sizes, and `int`s where they are constant.

    >>> b, t = Size.of(Symbol("B")), Size.of(Symbol("T"))
    >>> (b + 2) * t - t * b, b - b, b * 3
    (2*T, 0, 3*B)
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[tuple[Symbol, ...], int]) -> None:
        self.terms = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    @classmethod
    def of(cls, symbol: Symbol) -> Size:
        return cls({(symbol,): 1})

    def symbols(self) -> set[Symbol]:
        return {symbol for term in self.terms for symbol in term}

    def __add__(self, other: Any) -> Any:
        theirs = _terms(other)
        if theirs is None:
            return NotImplemented
        total = dict(self.terms)
        for term, factor in theirs.items():
            total[term] = total.get(term, 0) + factor
        return _simplest(total)

    def __mul__(self, other: Any) -> Any:
        theirs = _terms(other)
        if theirs is None:
            return NotImplemented
        product: dict[tuple[Symbol, ...], int] = {}
        for (a, x), (b, y) in itertools.product(self.terms.items(), theirs.items()):
            term = tuple(sorted(a + b))
            product[term] = product.get(term, 0) + x * y
        return _simplest(product)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return " + ".join(
            "*".join([str(factor)] * (factor != 1 or not term) + [symbol.name for symbol in term])
            for term, factor in self.terms.items()
        )


SizeLike: TypeAlias = int | Size


def divided(size: Any, by: Any) -> Any:
    """Returns the quotient of two sizes where it is a size and nothing is left over, else None.

    >>> b = Size.of(Symbol("B"))
    >>> divided(6 * b, 2 * b), divided(6 * b, 4), divided(7, 7)
    (3, None, 1)
    """
    if not (is_size(size) and is_size(by)):
        return None
    if size == by:
        return 1 if by != 0 else None
    if size == 0:
        return None if by == 0 else 0
    divisor = _terms(by)
    if divisor is None or len(divisor) != 1:
        return None
    ((symbols, factor),) = divisor.items()
    if factor == 0:
        return None
    quotient = {}
    for term, own in (_terms(size) or {}).items():
        rest = list(term)
        for symbol in symbols:
            if symbol not in rest:
                return None
            rest.remove(symbol)
        if own % factor:
            return None
        quotient[tuple(rest)] = own // factor
    return _simplest(quotient)


def evaluated(size: SizeLike, values: Mapping[Any, int]) -> SizeLike:
    """Returns a size with numbers in the place of symbols.

    >>> b, t = Symbol("B"), Symbol("T")
    >>> evaluated(2 * Size.of(b) * Size.of(t) + 1, {b: 5}), evaluated(3, {})
    (10*T + 1, 3)
    """
    total: Any = 0
    for symbols, factor in (_terms(size) or {}).items():
        term: Any = factor
        for symbol in symbols:
            term = term * values.get(symbol, Size.of(symbol))
        total = total + term
    return total


def product(sizes: Any) -> Any:
    """Returns the product of sizes; None where one is None or unknown.

    >>> product([2, Size.of(Symbol("B")), 3]), product([]), product([2, None])
    (6*B, 1, None)
    """
    total: Any = 1
    for size in sizes:
        if not is_size(size):
            return None
        total = total * size
    return total


def is_size(value: object) -> bool:
    """Returns whether a value is a size: a whole number or a `Size`."""
    return isinstance(value, Size) or (isinstance(value, int) and not isinstance(value, bool))


def is_positive(size: Any) -> bool:
    """Returns whether a size is certainly 1 or more, where each symbol is 0 or more."""
    terms = _terms(size) or {}
    return all(factor >= 0 for factor in terms.values()) and terms.get((), 0) > 0


def _terms(value: Any) -> Mapping[tuple[Symbol, ...], int] | None:
    if isinstance(value, Size):
        return value.terms
    if is_size(value):
        return {(): value} if value else {}
    return None


def _simplest(terms: Mapping[tuple[Symbol, ...], int]) -> SizeLike:
    left = {term: factor for term, factor in terms.items() if factor}
    if not left:
        return 0
    if left.keys() == {()}:
        return left[()]
    return Size(left)
