"""Layouts: where a batch's examples lie in a tensor, as far as the traced program shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.layout_rules import Layout, Rules
from tfdp.keras_adapter.tracing.marks import Mark, claim_of, mark_of
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import Place, Walk

_MARKED = {Mark.ROWS: Layout.ROWS, Mark.FITS: Layout.FITS, Mark.SPREAD: Layout.SPREAD}
MARK_OF = {layout: mark for mark, layout in _MARKED.items()}


class Layouts(Rules):
    """The layouts of the tensors in one replica's step.

    Args:
      walk: The walk that reads the program.
      rows: The number of the replica's examples, where tracing knows it.
      check_rows: A function that is called once with each two tensors whose first axes are taken to
        be equally long. It must make sure of that when the step runs. None in place of the second
        tensor means the share.
    """

    def __init__(
        self, walk: Walk, rows: int | None, check_rows: Callable[[Any, Any], None] | None = None
    ) -> None:
        super().__init__(rows)
        self._walk, self._check_rows = walk, check_rows
        self._checked: list[tuple[Any, Any]] = []
        self._known: dict[tuple[int, int], Layout] = {}
        self._alive: list[Place] = []

    def of(self, place: Place) -> Layout:
        """Returns the layout of a tensor."""
        if place.key not in self._known:
            self._alive.append(place)
            self._known[place.key] = Layout.UNKNOWN
            with contextlib.suppress(RecursionError):  # in too long a program
                self._known[place.key] = self._find(place)
        return self._known[place.key]

    def is_free(self, place: Place) -> bool:
        """Returns whether a tensor has nothing of the batch in it."""
        return not origins([place], walk=self._walk) & Origin.OWN

    def is_count(self, place: Place) -> bool:
        """Returns whether a scalar is the number of the replica's examples, times a constant."""
        place, node = self._walk.made_by(place)
        if node is None:
            return False
        if node.type in ("Cast", "Identity", "Squeeze", "Reshape"):
            return self.is_count(node.inputs[0])
        if node.type == "Mul":
            one, other = node.inputs
            return (self.is_count(one) and self.is_free(other)) or (
                self.is_count(other) and self.is_free(one)
            )
        if node.type == "Size":
            return self.of(node.inputs[0]) in (Layout.ROWS, Layout.SPREAD)
        if node.type in ("StridedSlice", "GatherV2"):
            _, shape = self._walk.made_by(node.inputs[0])
            first = constant_value(node.inputs[1])
            is_first = first is not None and int(first.reshape(-1)[0]) == 0
            return bool(
                is_first
                and place.tensor.shape.num_elements() == 1
                and shape is not None
                and shape.type == "Shape"
                and self.of(shape.inputs[0]) is Layout.ROWS
            )
        return False

    def _find(self, place: Place) -> Layout:
        node, asked = None, place
        if mark_of(place.tensor) is None:
            place, node = self._walk.made_by(place)
        known = mark_of(place.tensor)
        if known is Mark.CLAIMED:
            return self._of_claim(place, asked)
        if known is not None and known in _MARKED:
            return _MARKED[known]
        if known is not None:
            return Layout.FREE if self.is_free(place) else Layout.UNKNOWN
        if node is None:
            return self._of_argument(place)
        rule = self.rule(node)
        layout = Layout.UNKNOWN if rule is None else rule(place.tensor, node)
        if layout is Layout.UNKNOWN and self.is_free(place):
            return Layout.FREE
        return layout

    def _of_argument(self, place: Place) -> Layout:
        if self.is_free(place):
            return Layout.FREE
        tensor = place.tensor
        if not tf.is_symbolic_tensor(tensor) or not tensor.shape.rank:
            return Layout.UNKNOWN
        if tensor.dtype == tf.resource or tensor.shape[0] not in (None, self._rows):
            return Layout.UNKNOWN
        return Layout.ROWS if self._is_as_long(tensor, None) else Layout.UNKNOWN

    def _of_claim(self, place: Place, asked: Place) -> Layout:
        claim = claim_of(place.tensor)
        if place.frame is None:
            surely = all(self._is_as_long(*pair) for pair in claim.lengths)
            return claim.layout if surely else Layout.UNKNOWN
        # The function that made the tensor is traced already and can hold no check any more. What
        # it was given, and what it returned, can still be checked outside.
        given = [
            like is None and self.of(Place(tensor, place.frame)) is Layout.ROWS
            for tensor, like in claim.lengths
        ]
        if all(given):
            return claim.layout
        checked = asked.frame is None and self._is_as_long(asked.tensor, None)
        return Layout.ROWS if checked else Layout.UNKNOWN

    def _is_as_long(self, tensor: Any, like: Any) -> bool:
        """Has the first axes checked for equal lengths; returns False where nobody can."""
        if self._check_rows is None:
            return False
        if not any(tensor is one and like is other for one, other in self._checked):
            self._checked.append((tensor, like))
            self._check_rows(tensor, like)
        return True

    def begins_with_count(self, shape: Place) -> bool:
        """Returns whether the first number of a vector is a count: see `is_count`."""
        _, node = self._walk.made_by(shape)
        if node is None:
            return False
        if node.type in ("Pack", "ConcatV2"):
            return self.is_count(node.inputs[0]) or self.begins_with_count(node.inputs[0])
        if node.type in ("Cast", "Identity"):
            return self.begins_with_count(node.inputs[0])
        if node.type == "StridedSlice":
            return self.is_count(shape)
        return node.type == "Shape" and self.of(node.inputs[0]) is Layout.ROWS


def layouts_of(step: Step, walk: Walk, checks: bool = True) -> Layouts:
    """Returns the layouts of the step's tensors: where the share's examples lie in them.

    Args:
      step: The replica's step, with a share.
      walk: The walk that reads the program.
      checks: Whether the step may check, when it runs, the length of what a function is given. If
        not, nothing is known of a function's arguments.
    """
    assert step.share is not None
    return Layouts(walk, step.share.rows, step.share.check_rows if checks else None)
