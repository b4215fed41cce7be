"""Marks in a traced program: operations that give what they get, and say what replicas make of it.

They have the type of the borders of regions, which TensorFlow's optimizers keep. What needs no more
than to be found again is marked by its name.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

from tfdp.base.sharding import Sharding
from tfdp.partition.layouts import Sharded
from tfdp.partition.per_replica_region import BORDER
from tfdp.partition.sizes import fixed_cut

_PART = "tfdp part along axis "
_NORMALIZATION = "tfdp_batch_normalization"


def part_of_sum(tensor: tf.Tensor, cut: Sharding) -> tf.Tensor:
    """Returns a tensor of which each replica goes on with its part, as with a variable that is cut.

    Of summands the parts of sums are sent, and no whole sum. On one device it changes nothing.

    >>> sharding = Sharding((2,), axis=0, bounds=(0, 1, 2))
    >>> part_of_sum(tf.constant([1.0, 2.0]), sharding).numpy().tolist()
    [1.0, 2.0]
    """
    text = _PART + " ".join(map(str, (cut.axis, *cut.bounds)))
    assert BORDER == "PreventGradient"
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
    return Sharded(axis, fixed_cut(tuple(bounds)))


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
