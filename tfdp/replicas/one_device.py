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
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1
