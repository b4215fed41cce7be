"""Terms: the summands of what is differentiated, and how each depends on the batch's examples."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import Layouts, layouts_of
from tfdp.keras_adapter.tracing.marks import Mark, mark_of
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import Node, Place, Walk

_SAME = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "Neg", "EnsureShape")
_MOVES = ("Tile", "Transpose", "BroadcastTo", "StridedSlice", "Slice", "ReverseV2")
_ADDITIONS = ("Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2")
_DIVISIONS = ("RealDiv", "Div", "DivNoNan")


class Kind(enum.Enum):
    """The way in which a term depends on the batch, which decides its weight: see `weighing`.

    Attributes:
      LOSS: A loss of Keras, or what `add_loss` was given; it weighs as a mean.
      MEAN: A mean over the share's examples.
      FREE: A value that has nothing of the batch in it.
      SUM: A sum over the share's examples, or values of each.
    """

    LOSS = enum.auto()
    MEAN = enum.auto()
    FREE = enum.auto()
    SUM = enum.auto()


@dataclasses.dataclass(frozen=True)
class Factor:
    """A number that a term is multiplied by, or divided by if it is `inverse`."""

    value: Any
    inverse: bool = False

    def times(self, weight: tf.Tensor) -> tf.Tensor:
        """Multiplies `weight` by the factor, or divides it by an inverse one."""
        factor = tf.cast(self.value, weight.dtype)
        return weight / factor if self.inverse else weight * factor


@dataclasses.dataclass(frozen=True)
class Term:
    """A summand of a target.

    Attributes:
      value: The tensor, without the factors.
      kind: How the tensor depends on the batch.
      factors: The factors that multiply the tensor in the target; None where it cannot be taken out
        of the target.
      divided: Whether a factor divides by the number of replicas, or multiplies by its inverse.
      is_quotient: Whether a factor divides by that number itself.
    """

    value: Any
    kind: Kind
    factors: tuple[Factor, ...] | None = ()
    divided: bool = False
    is_quotient: bool = False

    def times(self, factor: Factor, divides: bool = False) -> Term:
        """Returns the term with one more factor, which may divide by the number of replicas."""
        factors = None if self.factors is None else (*self.factors, factor)
        return dataclasses.replace(
            self,
            factors=factors,
            divided=self.divided or divides,
            is_quotient=self.is_quotient or (divides and factor.inverse),
        )


class UnknownTerm(Exception):
    """The error where a target's dependence on the batch cannot be told; it says what was found."""


class OverLengthTerm(UnknownTerm):
    """The error where a sum over the examples is divided by a constant as large as their number.

    The constant may be their number, and the term a mean, or equal it by chance.
    """


class Terms:
    """The search for terms in one replica's step.

    Args:
      layouts: The layouts of the step's tensors.
      walk: The walk that reads the program.
      rows: The number of the replica's examples, where tracing knows it.
      num_replicas: The number of replicas in sync.
    """

    def __init__(self, layouts: Layouts, walk: Walk, rows: int | None, num_replicas: int) -> None:
        self._layouts, self._walk = layouts, walk
        self._rows, self._num_replicas = rows, num_replicas

    def of(self, place: Place) -> list[Term]:
        """Returns the terms that add up to a tensor or, as a tape takes it, to its elements' sum.

        Raises:
          UnknownTerm: A term is neither a loss of Keras, nor a mean or sum over the batch, nor free
            of it.
        """
        found, node = place, None
        if mark_of(place.tensor) is None:
            found, node = self._walk.made_by(place)
        if mark_of(found.tensor) in (Mark.LOSS, Mark.MEAN):
            return [_term(place, Kind.LOSS)]
        layout = self._layouts.of(found)
        if layout is Layout.FREE or self._layouts.is_free(found):
            return self._free(place, found, node)
        if layout in (Layout.ROWS, Layout.SPREAD):
            return [_term(place, Kind.SUM)]
        if layout is Layout.FITS:
            raise UnknownTerm("values whose length alone is that of the examples")
        if node is None:
            raise UnknownTerm("a value that was made elsewhere")
        return self._composed(place, found, node)

    def _free(self, place: Place, found: Place, node: Node | None) -> list[Term]:
        """Returns the terms of what is the same on all replicas.

        So are losses of Keras, which have the whole batch's value and yet a gradient of the
        replica's own. They are looked for in scalars, and stay losses.
        """
        together = origins([found], walk=self._walk) & Origin.TOGETHER
        if node is not None and together and place.tensor.shape.rank == 0:
            with contextlib.suppress(UnknownTerm):
                terms = self._composed(place, found, node)
                if any(term.kind is Kind.LOSS for term in terms):
                    return [term if term.kind is Kind.LOSS else _by_chance(term) for term in terms]
        return [_term(place, Kind.FREE)]

    def _composed(self, place: Place, found: Place, node: Node) -> list[Term]:
        if node.type in ("Mean", "Sum", "L2Loss"):
            return self._reduction(place, node)
        if node.type in _SAME:
            terms = self.of(node.inputs[0])
            return [term.times(Factor(-1.0)) for term in terms] if node.type == "Neg" else terms
        if node.type in _MOVES:
            if self._layouts.of(node.inputs[0]) is not Layout.UNKNOWN:
                raise UnknownTerm(f"`{node.type}` of values of single examples")
            return [dataclasses.replace(term, factors=None) for term in self.of(node.inputs[0])]
        if node.type == "MatMul":
            return self._contraction(place, node)
        if node.type in _ADDITIONS:
            return self._addition(found, node)
        if node.type in ("Mul", "MulNoNan"):
            return self._product(node)
        if node.type in _DIVISIONS:
            return self._quotient(node)
        raise UnknownTerm(f"`{node.type}` of values in which examples are mixed")

    def _reduction(self, place: Place, node: Node) -> list[Term]:
        value = node.inputs[0]
        layout = self._layouts.of(value)
        if layout in (Layout.ROWS, Layout.FITS) or (layout is Layout.SPREAD and _is_whole(node)):
            if node.type == "Mean":
                return [_term(place, Kind.MEAN)]
            if layout is not Layout.FITS:
                return [_term(place, Kind.SUM)]
        if layout is not Layout.UNKNOWN or node.type == "L2Loss":
            raise UnknownTerm(f"`{node.type}` over an axis that may be that of the examples")
        terms = self.of(value)
        if node.type == "Sum" or value.tensor.shape.rank == 0:
            return terms
        if any(term.kind is Kind.SUM for term in terms):
            raise UnknownTerm("a mean of sums over the examples")
        return [dataclasses.replace(term, factors=None) for term in terms]

    def _addition(self, place: Place, node: Node) -> list[Term]:
        stacks = node.type in ("Pack", "ConcatV2")
        inputs = node.inputs[:-1] if node.type == "ConcatV2" else node.inputs
        zeros = [not stacks and _number(value) == 0 for value in inputs]
        # A zero, with which regularizers begin their sum, is no term unless it is alone.
        summands = [
            [] if zero and not all(zeros) else self.of(value)
            for value, zero in zip(inputs, zeros, strict=True)
        ]
        if node.type == "Sub":
            summands[1] = [term.times(Factor(-1.0)) for term in summands[1]]
        terms = [term for summand in summands for term in summand]
        shape = place.tensor.shape
        if not stacks and any(value.tensor.shape.as_list() != shape.as_list() for value in inputs):
            if self._is_of_each(place, inputs, summands):
                return [_term(place, Kind.SUM)]
            if any(term.kind is Kind.SUM for term in terms):
                raise UnknownTerm("a sum over the examples that is added to each of several values")
            terms = [dataclasses.replace(term, factors=None) for term in terms]
        return terms

    def _is_of_each(self, place: Place, inputs: list[Place], summands: list[list[Term]]) -> bool:
        """Returns whether scalars that are no sums are added to values of each example.

        A tape adds up the elements, so a scalar counts once for each example on the replica: the
        whole is a sum over the examples.
        """
        whole = [(Layout.ROWS, Layout.SPREAD), place.tensor.shape.as_list()]
        return all(
            self._layouts.of(value) in whole[0] and value.tensor.shape.as_list() == whole[1]
            if value.tensor.shape.rank
            else not _has_sum(terms)
            for value, terms in zip(inputs, summands, strict=True)
        )

    def _contraction(self, place: Place, node: Node) -> list[Term]:
        """Returns the terms of a matrix product; one over the examples' axis sums over them."""
        layouts = [self._layouts.of(value) for value in node.inputs]
        over_rows = node.attribute("transpose_a") and not node.attribute("transpose_b")
        if over_rows and layouts == [Layout.ROWS] * 2:
            return [_term(place, Kind.SUM)]
        if Layout.FREE not in layouts:
            raise UnknownTerm("`MatMul` of examples with each other")
        terms = self.of(node.inputs[0 if layouts[1] is Layout.FREE else 1])
        return [dataclasses.replace(term, factors=None) for term in terms]

    def _product(self, node: Node) -> list[Term]:
        one, other = node.inputs
        if not self._layouts.is_free(other):
            one, other = other, one
        if not self._layouts.is_free(other):
            raise UnknownTerm("a product of two values that depend on the examples")
        number = _number(other)
        divides = number is not None and bool(np.isclose(number * self._num_replicas, 1.0))
        return _times(self.of(one), other, divides)

    def _quotient(self, node: Node) -> list[Term]:
        value, divisor = node.inputs
        terms = self.of(value)
        if self._layouts.is_free(divisor):
            number = _number(divisor)
            if self._rows is not None and number == self._rows and _has_sum(terms):
                raise OverLengthTerm(
                    f"a sum over the examples of a replica, divided by {self._rows}"
                )
            return _times(terms, divisor, number == self._num_replicas, inverse=True)
        counts, divides = self._counts(divisor)
        if not counts:
            raise UnknownTerm("a quotient of two values that depend on the examples")
        if any(term.kind is not Kind.SUM for term in terms):
            raise UnknownTerm("a mean over the examples that is divided by their number")
        means = [dataclasses.replace(term, kind=Kind.MEAN) for term in terms]
        return _times(means, divisor, divides, inverse=True)

    def _counts(self, place: Place) -> tuple[bool, bool]:
        """Returns whether a divisor is the number of examples, and if times that of replicas."""
        _, node = self._walk.made_by(place)
        if node is not None and node.type in ("Cast", "Identity"):
            return self._counts(node.inputs[0])
        if node is not None and node.type == "Mul":
            one, other = node.inputs
            if not self._layouts.is_free(other):
                one, other = other, one
            if self._layouts.is_free(other):
                counts, divides = self._counts(one)
                return counts, divides or _number(other) == self._num_replicas
        return self._layouts.is_count(place), False


def terms_of(step: Step, value: Any, checks: bool = True) -> list[Term]:
    """Returns the terms whose sum is `value`, in a step with a share; `checks` as in `layouts_of`.

    Raises:
      UnknownTerm: A term is neither a mean or sum over the batch, nor free of it.
    """
    assert step.share is not None
    walk = Walk()
    finder = Terms(layouts_of(step, walk, checks), walk, step.share.rows, step.num_replicas)
    try:
        return finder.of(Place(value))
    except RecursionError:
        raise UnknownTerm("too long a program") from None


def _term(place: Place, kind: Kind) -> Term:
    # A value inside of a called function cannot be differentiated apart from the call's result.
    return Term(place.tensor, kind, () if place.frame is None else None)


def _times(terms: list[Term], factor: Place, divides: bool, inverse: bool = False) -> list[Term]:
    if factor.frame is not None or factor.tensor.shape.rank != 0:
        terms = [dataclasses.replace(term, factors=None) for term in terms]
    return [term.times(Factor(factor.tensor, inverse), divides) for term in terms]


def _by_chance(term: Term) -> Term:
    """Returns a penalty as undivided: its rate may equal the inverse of the number by chance."""
    return dataclasses.replace(term, divided=False, is_quotient=False)


def _has_sum(terms: list[Term]) -> bool:
    return any(term.kind is Kind.SUM for term in terms)


def _is_whole(node: Node) -> bool:
    if node.type == "L2Loss":
        return True
    axes, rank = constant_value(node.inputs[1]), node.inputs[0].tensor.shape.rank
    return axes is not None and rank == np.size(axes)


def _number(place: Place) -> float | None:
    value = constant_value(place)
    return float(np.reshape(value, ())) if value is not None and np.size(value) == 1 else None
