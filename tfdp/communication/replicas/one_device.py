"""Whether the calling thread traces a program as one device has it: there are no replicas then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


def is_traced() -> bool:
    """Returns whether the calling thread traces a program as on one device."""
    return bool(getattr(_thread, "depth", 0))


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Declares that what the calling thread traces is a program of one device.

    >>> with traced():
    ...     is_traced()
    True
    """
    with _depth(getattr(_thread, "depth", 0) + 1):
        yield


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Declares that what the calling thread does in the midst of such a trace is no part of it.

    >>> with traced(), left():
    ...     is_traced()
    False
    """
    with _depth(0):
        yield


@contextlib.contextmanager
def _depth(depth: int) -> Iterator[None]:
    outer, _thread.depth = getattr(_thread, "depth", 0), depth
    try:
        yield
    finally:
        _thread.depth = outer
