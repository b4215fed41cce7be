"""Private methods and attributes of Keras' and TensorFlow's objects, each declared in a shim.

A shim is a module `_keras.py` or `_tensorflow.py`, where each name stands with its reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

METHODS: list[tuple[type, str]] = []
ATTRIBUTES: list[Attribute] = []


def method(owner: type, name: str) -> Callable[..., Any]:
    """Returns a function that calls a private method of objects of `owner`.

    The method is among those whose fingerprints are compared when hooks are put in place.

    >>> class Layer:
    ...     def _count(self, start):
    ...         return start + 1
    >>> count = method(Layer, "_count")
    >>> count(Layer(), 2)
    3
    """
    METHODS.append((next((cls for cls in owner.__mro__ if name in vars(cls)), owner), name))

    def call(thing: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(thing, name)(*args, **kwargs)

    return call


@dataclasses.dataclass(frozen=True)
class Attribute:
    """A private attribute that objects of `owner` set or define as a property: called, its value.

    `tests/hooks/test_private.py` fails where the class mentions it no more.

    >>> class Layer:
    ...     def __init__(self):
    ...         self._rate = 2
    >>> rate, layer = Attribute(Layer, "_rate"), Layer()
    >>> rate.set(layer, 3)
    >>> rate(layer)
    3
    """

    owner: type
    name: str

    def __post_init__(self) -> None:
        ATTRIBUTES.append(self)

    def __call__(self, thing: Any) -> Any:
        """Returns the attribute's value."""
        return getattr(thing, self.name)

    def set(self, thing: Any, value: Any) -> None:
        """Changes the attribute's value."""
        setattr(thing, self.name, value)
