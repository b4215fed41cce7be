"""The rows of sparse gradients: chosen by the replica's examples, or the same on all replicas."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.keras_adapter.step import Step
from tfdp.keras_adapter.tracing.constants import constant_value
from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import Layouts
from tfdp.keras_adapter.tracing.origins import Origin, origins
from tfdp.keras_adapter.tracing.walk import Node, Place, Walk

_FORMS = ("Identity", "Reshape", "Cast", "ExpandDims", "Squeeze", "StridedSlice", "ReverseV2")
_SHIFTS = ("Add", "AddV2", "Sub", "Mul")


class Rows(enum.Enum):
    """The kinds of rows that a gradient may have, as far as is known.

    Attributes:
      DENSE: All rows of the variable: the gradient is no `tf.IndexedSlices`.
      ALIKE: The same rows on all replicas, in the same order.
      IN_PLACES: The same rows in the same order, but fewer of them on some replicas: they follow
        from sizes of the batch.
      ONCE: Each row at most once: values of the same row were summed.
      OWN: Rows that the replica's examples chose, or of which nothing is known.
    """

    DENSE = enum.auto()
    ALIKE = enum.auto()
    IN_PLACES = enum.auto()
    ONCE = enum.auto()
    OWN = enum.auto()


class Lookups:
    """The search for what one replica's step shows of the rows of gradients.

    Args:
      step: The replica's step.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._walk = step, Walk()
        self._layouts = Layouts(self._walk, None if step.share is None else step.share.rows)

    def pieces(self, gradient: Any) -> list[Any]:
        """Splits a gradient whose rows are of several kinds; returns any other as the only piece.

        A table that is read several times has a gradient with the rows of each reading in turn, and
        each reading is a piece.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            return [gradient]
        parts = [
            [] if node is None or node.type != "ConcatV2" else [v.tensor for v in node.inputs[:-1]]
            for place, node in map(
                self._walk.made_by, map(Place, (gradient.values, gradient.indices))
            )
            if place.frame is None
        ]
        if len(parts) < 2 or len(parts[0]) != len(parts[1]) or not parts[0]:
            return [gradient]
        pieces = [
            tf.IndexedSlices(*each, gradient.dense_shape) for each in zip(*parts, strict=True)
        ]
        return pieces if {*map(self.rows_of, pieces)} - {Rows.OWN} else [gradient]

    def rows_of(self, gradient: Any) -> Rows:
        """Returns the kind of a gradient's rows."""
        if not isinstance(gradient, tf.IndexedSlices):
            return Rows.DENSE
        place, share = Place(gradient.indices), self._step.share
        symbolic = tf.is_symbolic_tensor(gradient.indices)
        if not symbolic and share is None:
            return Rows.OWN  # An eager loop of the user's: operations were not remembered.
        if self._were_merged(place):
            return Rows.ONCE
        if symbolic and origins([place], walk=self._walk) is Origin.ALIKE:
            known = Rows.ALIKE
        elif origins([place], walk=self._walk, alike=self._is_size) is Origin.ALIKE:
            known = Rows.IN_PLACES
        else:
            return Rows.OWN
        if not self._may_be_each_examples(place):
            return known
        self._step.warn_once(
            "rows of a table",
            "Rows of a table are looked up at constant places, and may be repeated for each example"
            " of the batch, which is how they are taken. If they are not, an optimizer such as Adam"
            " trains otherwise than on one device: then batch the dataset without "
            "`drop_remainder=True`, and train in a graph.",
        )
        return Rows.OWN

    def _were_merged(self, place: Place) -> bool:
        """Returns whether rows were made unique, as in the gradient of a sparse matrix product."""
        _, node = self._walk.made_by(place)
        if node is not None and node.type in _FORMS[:4]:
            return self._were_merged(node.inputs[0])
        return node is not None and node.type in ("Unique", "UniqueV2")

    def _is_size(self, place: Place, node: Node) -> bool:
        """Returns whether a value follows from sizes of the batch other than its length."""
        if node.type == "Range":
            return not any(map(self._layouts.is_count, node.inputs))
        if node.type not in ("StridedSlice", "GatherV2"):
            return False
        _, shape = self._walk.made_by(node.inputs[0])
        first = constant_value(node.inputs[1])
        if shape is None or shape.type != "Shape" or first is None:
            return False
        rank = shape.inputs[0].tensor.shape.rank or 0
        is_later = int(np.min(first)) % max(rank, 1) > 0
        return is_later and self._layouts.of(shape.inputs[0]) in (Layout.ROWS, Layout.FITS)

    def _may_be_each_examples(self, place: Place) -> bool:
        """Returns whether rows that are alike on all replicas may be repeated for each example.

        Where shapes are fixed the number of examples is a constant, too, and rows that are repeated
        so many times do not show that they depend on it.
        """
        share = self._step.share
        if share is None or not share.rows:
            return False
        length, eager = place.tensor.shape[0], not tf.is_symbolic_tensor(place.tensor)
        if not eager and (length is None or length % share.rows):
            return False
        return not self._is_of_all(place, None if eager else share.rows)

    def _is_of_all(self, place: Place, examples: int | None) -> bool:
        """Returns whether rows are seen not to be repeated: a range, or what is made of one."""
        place, node = self._walk.made_by(place)
        if node is None or node.type == "Const":
            rows = constant_value(place)
            return rows is None or examples is None or not _is_repeated(rows, examples)
        if node.type == "Range":
            return True
        if node.type in _SHIFTS:
            several = [v for v in node.inputs if v.tensor.shape.num_elements() != 1]
            return len(several) < 2 and all(self._is_of_all(v, examples) for v in several)
        return node.type in _FORMS and self._is_of_all(node.inputs[0], examples)


def _is_repeated(rows: np.ndarray, times: int) -> bool:
    if rows.size % times:
        return False
    blocks = rows.reshape(times, -1)
    each = rows.reshape(-1, times)
    return bool((blocks == blocks[0]).all() or (each == each[:, :1]).all())
