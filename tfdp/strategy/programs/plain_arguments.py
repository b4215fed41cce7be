"""Arguments that are whole tensors alone, and what tells them from others in a microsecond each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.strategy._tensorflow_programs import EagerTensor

# Of other values a call looks at more than their type and what they are equal to.
_VALUES = (type(None), bool, int, float, str)


class Plain(NamedTuple):
    """The arguments of a call outside of graphs: nests of tensors, and values of Python's own.

    Attributes:
      key: What all that is made for a call depends on: the nest, values, dtypes and shapes.
      tensors: The tensors, in the order of `tf.nest`.
    """

    key: Hashable
    tensors: Sequence[tf.Tensor]


def plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Plain | None:
    """Returns the arguments of a call if there are none of other kinds.

    >>> one, two = plain((tf.ones([3]), 2), {}), plain((tf.zeros([3]), 2), {})
    >>> one.key == two.key, one.key == plain((tf.ones([3]), 2.0), {}).key
    (True, False)
    >>> plain((object(),), {})
    """
    tensors: list[tf.Tensor] = []
    key = _key((tuple(args), dict(kwargs)), tensors)
    return None if key is None else Plain(key, tensors)


def _key(value: Any, tensors: list[tf.Tensor]) -> Hashable | None:
    kind = type(value)
    if kind is EagerTensor:
        tensors.append(value)
        return value.dtype, (*value.shape,)
    if kind in _VALUES:
        return kind, value
    if kind is dict:
        names = list(value)
        if not all(type(name) is str for name in names):
            return None
        names.sort()
        found = [_key(value[name], tensors) for name in names]
        return None if None in found else (dict, *names, *found)
    if kind in (tuple, list):
        found = [_key(each, tensors) for each in value]
        return None if None in found else (kind, *found)
    return None
