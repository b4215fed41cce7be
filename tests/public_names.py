"""What tfdp exports, found by reflection: `__all__` of the package and of the packages in it."""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import tfdp

_METHODS = (types.FunctionType, property, functools.cached_property, classmethod, staticmethod)


def packages(package: types.ModuleType = tfdp) -> Iterator[types.ModuleType]:
    """`tfdp`, and the packages that it and they export."""
    yield package
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.ismodule(value):
            yield from packages(value)


def names() -> dict[str, Any]:
    """All that is exported and is no package, by its dotted name."""
    return {
        f"{package.__name__}.{name}": value
        for package in packages()
        for name in package.__all__
        if not inspect.ismodule(value := getattr(package, name))
    }


def is_documentable(value: Any) -> bool:
    """Whether it is a class or a function: constants have no docstring."""
    return inspect.isclass(value) or inspect.isroutine(value)


def methods(value: type) -> dict[str, type]:
    """Public methods and properties, and the class that defines each.

    Those of a base that tfdp does not export belong to the class; others to their base.
    """
    return {
        name: owner
        for owner in reversed(_own(value))
        for name, member in vars(owner).items()
        if not name.startswith("_") and isinstance(member, _METHODS)
    }


def new_methods(value: type) -> dict[str, type]:
    """Those that override nothing of Keras, TensorFlow, Python or an exported base."""
    bases = [base for base in value.__mro__ if base not in _own(value)]
    return {
        name: owner
        for name, owner in methods(value).items()
        if not any(hasattr(base, name) for base in bases)
    }


def _own(value: type) -> list[type]:
    exported = [other for other in names().values() if inspect.isclass(other)]
    documented = [base for base in value.__mro__[1:] if base in exported]
    return [
        base
        for base in value.__mro__
        if base.__module__.startswith("tfdp.")
        and not any(issubclass(other, base) for other in documented)
    ]
