"""Marks in a traced program: operations that give what they get, and say what replicas make of it.

They have a type that TensorFlow's optimizers keep. What needs no more than to be found again is
marked by its name.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.base.unique_numbers import unique_number
from tfdp.partition.layouts import Sharded
from tfdp.partition.sizes import FixedShard

# The type of operation that is a mark, and how its text begins: of a region's boundary, of a part.
BOUNDARY = "PreventGradient"
_MARK = "tfdp region: "
_PART = "tfdp part along axis "
_NORMALIZATION = "tfdp_batch_normalization"

# What happens at a boundary: rows that say how the region's rows are sharded; other rows; what all
# replicas have; and what comes out: rows, a partial, a mean by rows.
FIRST_ROWS, MORE_ROWS, REPLICATED_IN, ROWS, PARTIAL_OUT, MEAN = (
    *("first rows", "more rows", "replicated"),
    *("rows", "partial", "mean"),
)


class PerReplicaRegion:
    """A region of a traced program in which each replica computes its own, as if it were alone.

    On one device a region changes nothing. Where replicas run the program each computes within it
    on its rows: what is a mean over the examples there is one over the replica's own. A region is
    told by operations that give what they get, at all its boundaries, and in the backward pass at
    these again: rows go in and come out as rows; of a weight that goes in, and gets a gradient, the
    replicas' gradients are partial; and a value of each replica's own comes out as the mean by
    rows.

    Args:
      rows: The tensor whose first axis is that of the examples; other rows are as many.

    Attributes:
      rows: The tensor, within the region.

    >>> region = PerReplicaRegion(tf.constant([1.0, 3.0]))
    >>> centered = region.rows - tf.reduce_mean(region.rows)
    >>> region.rows_out(centered).numpy().tolist()
    [-1.0, 1.0]
    """

    def __init__(self, rows: tf.Tensor) -> None:
        self._number = unique_number("regions")  # programs are compared with it between ranks
        self._shape = rows.shape
        self.rows = self._in(rows, FIRST_ROWS)

    def rows_in(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows, such as a mask, within the region."""
        return self._in(rows, MORE_ROWS)

    def weight_in(self, weight: tf.Tensor) -> tf.Tensor:
        """Returns what all replicas have, such as a weight, within the region."""
        return self._crossed(weight, REPLICATED_IN, self._partial_out)

    def rows_out(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows that the region has made, outside of it."""
        found = self._crossed(rows, ROWS, self.rows_in)
        found.set_shape([*self._shape[:1], *found.shape[1:]])
        return found

    def mean_out(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the mean of the replicas' values by their rows, outside of it; it is constant."""
        return self._crossed(tf.stop_gradient(value), MEAN, tf.zeros_like)

    def _partial_out(self, own: tf.Tensor) -> tf.Tensor:
        return self._crossed(own, PARTIAL_OUT, self.weight_in)

    def _in(self, rows: tf.Tensor, kind: str) -> tf.Tensor:
        found = self._crossed(rows, kind, self.rows_out)
        # A length that the trace knew would be taken for that of the replica's rows.
        return _of_any_length(found)

    def _crossed(
        self, tensor: tf.Tensor, kind: str, gradient: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        @tf.custom_gradient
        def crossed(inner: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            text = f"{_MARK}{kind} {self._number}"
            with self._after_first_rows(kind):
                return tf.raw_ops.PreventGradient(input=inner, message=text), gradient

        return crossed(tensor)

    def _after_first_rows(self, kind: str) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for operations that wait for the rows, whose layout they need."""
        if kind in (FIRST_ROWS, REPLICATED_IN) or tf.executing_eagerly():
            return contextlib.nullcontext()
        is_here = self.rows.graph is tf.compat.v1.get_default_graph()
        return tf.control_dependencies([self.rows] if is_here else [])


@tf.custom_gradient
def _of_any_length(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    shape = tf.TensorShape([None, *rows.shape[1:]])
    return tf.raw_ops.PlaceholderWithDefault(input=rows, shape=shape), tf.identity


def boundary_of(text: bytes) -> tuple[str, int] | None:
    """Returns what happens at a boundary, and the region's number, by its operation's text.

    >>> boundary_of(b"tfdp region: more rows 7"), boundary_of(b"a text of the user's")
    (('more rows', 7), None)
    """
    said = text.decode(errors="replace")
    if not said.startswith(_MARK):
        return None
    kind, _, number = said.removeprefix(_MARK).rpartition(" ")
    return kind, int(number)


def part_of_sum(tensor: tf.Tensor, sharding: Sharding) -> tf.Tensor:
    """Returns a tensor of which each replica goes on with its part, as of a sharded variable.

    Of partials the parts of sums are sent, and no whole sum. On one device it changes nothing.

    >>> sharding = Sharding((2,), axis=0, bounds=(0, 1, 2))
    >>> part_of_sum(tf.constant([1.0, 2.0]), sharding).numpy().tolist()
    [1.0, 2.0]
    """
    text = _PART + " ".join(map(str, (sharding.axis, *sharding.bounds)))
    return tf.raw_ops.PreventGradient(input=tensor, message=text)


def part_asked_for(text: bytes) -> Sharded | None:
    """Returns the layout that a mark asks for, by its operation's text; None: it is no such mark.

    >>> part_asked_for(b"tfdp part along axis 1 0 2 5"), part_asked_for(b"a text of the user's")
    (sharded(axis 1 by parts of 5), None)
    """
    said = text.decode(errors="replace")
    if not said.startswith(_PART):
        return None
    axis, *bounds = map(int, said.removeprefix(_PART).split())
    return Sharded(axis, FixedShard(tuple(bounds)))


def normalization() -> contextlib.AbstractContextManager[object]:
    """Returns a context for a plain BatchNormalization, whose gradient's operations are marked too.

    >>> with tf.Graph().as_default(), normalization():
    ...     is_of_normalization(tf.constant(1.0).op.name)
    True
    """
    return tf.name_scope(_NORMALIZATION)


def is_of_normalization(name: str) -> bool:
    """Returns whether an operation of this name was made in a context of `normalization`."""
    return _NORMALIZATION in name
