"""Private methods and attributes of Keras' and TensorFlow's objects, each declared in a shim.

A shim is a module `_keras.py` or `_tensorflow.py`, where each name stands with its reason.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

METHODS: list[tuple[type, str]] = []  # of all shims that are imported, to be compared together


def method(owner: type, name: str) -> Callable[..., Any]:
    """Returns a function that calls a private method of an object of `owner`.

    The method's fingerprint is compared with the tested ones when hooks are put in place.

    Args:
      owner: The class that defines the method, or inherits it.
      name: The method's name.

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
    """A private attribute or property of objects of `owner`; a call returns its value.

    `tests/base/hooks/test_private_names.py` fails where the class no longer mentions the attribute.

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

    def __call__(self, thing: Any) -> Any:
        """Returns the value that the attribute has in an object."""
        return getattr(thing, self.name)

    def set(self, thing: Any, value: Any) -> None:
        setattr(thing, self.name, value)
