"""Arguments that are whole tensors alone, and what tells them from others in a microsecond each."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.strategy._tensorflow_programs import EagerTensor, shape_of

# Of other values a call looks at more than their type and what they are equal to.
_VALUES = (type(None), bool, int, float, str)


class Plain(NamedTuple):
    """The arguments of calls outside of graphs: nests of tensors, and values of Python's own.

    Attributes:
      key: What all that is made for them depends on: the nest, values, dtypes and shapes.
      tensors: The tensors, in the order of `tf.nest`.
    """

    key: Hashable
    tensors: Sequence[tf.Tensor]


def plain(nest: Any, parts_of: Mapping[type, Callable[[Any], Any]] | None = None) -> Plain | None:
    """Returns arguments if there are none of other kinds.

    Args:
      nest: The arguments.
      parts_of: For other types that may be in it a function that returns a nest of what one has.

    >>> one, two = plain((tf.ones([3]), 2)), plain((tf.zeros([3]), 2))
    >>> one.key == two.key, one.key == plain((tf.ones([3]), 2.0)).key
    (True, False)
    >>> plain((object(),))
    """
    tensors: list[tf.Tensor] = []
    key = _key(nest, tensors, parts_of or {})
    return None if key is None else Plain(key, tensors)


def _key(
    value: Any, tensors: list[tf.Tensor], parts_of: Mapping[type, Callable[[Any], Any]]
) -> Hashable | None:
    kind = type(value)
    if kind is EagerTensor:
        tensors.append(value)
        return value.dtype, shape_of(value)
    if kind in _VALUES:
        return kind, value
    if kind is dict:
        if not all(type(name) is str for name in value):
            return None
        found = [_key(value[name], tensors, parts_of) for name in sorted(value)]
        return None if None in found else (dict, *value, *found)
    if kind in (tuple, list):
        found = [_key(each, tensors, parts_of) for each in value]
        return None if None in found else (kind, *found)
    if kind in parts_of:
        parts = _key(parts_of[kind](value), tensors, parts_of)
        return None if parts is None else (kind, parts)
    return None
