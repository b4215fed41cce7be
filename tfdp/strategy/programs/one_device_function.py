"""The result of `partitioned`: a function for one device that is called as one."""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import tracebacks
from tfdp.communication.replicas import one_device
from tfdp.strategy._tensorflow_programs import Literal, Weakref


class AbstractOneDeviceFunction(abc.ABC):
    """A function for one device that all devices of a strategy run together.

    Args:
      function: The function.

    Attributes:
      python_function: The function.
      of_arguments: The names of the methods that take the arguments of a call.
    """

    of_arguments: tuple[str, ...] = ()

    def __init__(self, function: Callable[..., Any]) -> None:
        self.python_function = function
        self._methods: dict[int, AbstractOneDeviceFunction] = {}
        functools.update_wrapper(self, function)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Returns the method of an object, as a decorated function in a class is asked for."""
        if owner is None:
            return self
        if not type(owner).__weakrefoffset__:  # it is an argument as others are
            return _Method(owner, self, (owner,))
        # Objects that are equal have variables of their own.
        if id(owner) not in self._methods:
            function, reference = self.python_function, weakref.ref(owner)

            @functools.wraps(function)
            def method(*args: Any, **kwargs: Any) -> Any:
                return function(reference(), *args, **kwargs)

            self._methods[id(owner)] = self._like(method)
            weakref.finalize(owner, self._methods.pop, id(owner)).atexit = False
        return _Method(owner, self._methods[id(owner)])

    @tf.autograph.experimental.do_not_convert
    @tracebacks.filtered
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function on the whole batch, as its devices' programs do together."""
        if one_device.is_traced():
            return self.python_function(*args, **kwargs)  # part of the program around it
        return self._called(args, kwargs)

    def __tf_tracing_type__(self, context: Any) -> tf.types.experimental.TraceType:
        return Weakref(weakref.ref(self))  # a `tf.function` would take what this wraps

    @abc.abstractmethod
    def _like(self, function: Callable[..., Any]) -> AbstractOneDeviceFunction:
        """Returns another function of the same strategy and options."""

    @abc.abstractmethod
    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs the function, outside of programs of one device."""

    @abc.abstractmethod
    def experimental_get_tracing_count(self) -> int:
        """Returns how often the function was traced, as a `tf.function` does."""


class _Method:
    """A method, which has its object live while it is called; all else is the function's.

    Args:
      owner: The object.
      function: The function that is called.
      first: What it is given before the arguments of a call.
    """

    def __init__(
        self, owner: Any, function: AbstractOneDeviceFunction, first: tuple[Any, ...] = ()
    ) -> None:
        self._owner, self._function, self._first = owner, function, first
        functools.update_wrapper(self, function, updated=())

    def __eq__(self, other: object) -> bool:
        # A function that is given the method is traced once for each object.
        return (
            isinstance(other, _Method)
            and self._owner is other._owner
            and self._function is other._function
        )

    def __hash__(self) -> int:
        return hash((id(self._owner), self._function))

    def __tf_tracing_type__(self, context: Any) -> tf.types.experimental.TraceType:
        if not self._first:  # the function is this object's alone, and ends with it
            return self._function.__tf_tracing_type__(context)
        return Literal(self)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*self._first, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._function, name)
        if name not in self._function.of_arguments:
            return found

        @functools.wraps(found)
        def method(*args: Any, **kwargs: Any) -> Any:
            return found(*self._first, *args, **kwargs)

        return method
