"""The program of one device that the calling thread traces: there are no replicas in it."""

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

_thread = threading.local()


class TracedProgram(NamedTuple):
    """What is known of the program that the calling thread traces.

    Attributes:
      is_traced: Whether it traces a program as on one device.
      sizes_are_fixed: Whether all sizes in it are known, where one device's trace knows fewer.
      moments_are_per_replica: Whether plain batch normalization in it is by each replica's moments.
      normalizing: What a layer that normalizes so has told of its call, while it is called.
    """

    is_traced: bool = False
    sizes_are_fixed: bool = False
    moments_are_per_replica: bool = False
    normalizing: object = None


_NONE = TracedProgram()


def program() -> TracedProgram:
    """Returns what is known of the program that the calling thread traces."""
    return getattr(_thread, "program", _NONE)


def is_traced() -> bool:
    """Returns whether the calling thread traces a program as on one device."""
    return program().is_traced


@contextlib.contextmanager
def traced(**known: bool) -> Iterator[None]:
    """Declares that what the calling thread traces is a program of one device.

    Args:
      **known: What is known of it, as attributes of `TracedProgram`; the rest is as it was.

    >>> with traced(sizes_are_fixed=True), traced():
    ...     is_traced(), program().sizes_are_fixed
    (True, True)
    """
    with _as(program()._replace(is_traced=True, **known)):
        yield


@contextlib.contextmanager
def normalizing(call: object) -> Iterator[None]:
    """Tells, within the context, of the call of a layer as `TracedProgram.normalizing`."""
    with _as(program()._replace(normalizing=call)):
        yield


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Declares that what the calling thread does in the midst of such a trace is no part of it.

    >>> with traced(), left():
    ...     is_traced()
    False
    """
    with _as(_NONE):
        yield


@contextlib.contextmanager
def _as(traced_program: TracedProgram) -> Iterator[None]:
    outer, _thread.program = program(), traced_program
    try:
        yield
    finally:
        _thread.program = outer
