"""The save, or the load of rank 0's file, that is under way, as the hooks called in it know it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar


@dataclasses.dataclass(frozen=True)
class Save:
    """A save.

    Attributes:
      new: The path that it writes to. Hooked functions that are called in it write where they say.
      path: The path that its result will have.
      failures: The failures to write that nobody was told of yet.
    """

    new: str
    path: str
    failures: list[OSError] = dataclasses.field(default_factory=list)


_LOAD = object()
_under_way: ContextVar[object] = ContextVar("under_way", default=None)


def save() -> Save | None:
    """Returns the save that is under way."""
    found = _under_way.get()
    return found if isinstance(found, Save) else None


def is_loading() -> bool:
    """Returns whether each process loads a file of its own: one that rank 0 has sent already."""
    return _under_way.get() is _LOAD


@contextlib.contextmanager
def saving(new: str, path: str) -> Iterator[None]:
    """Saves within the context; raises at its end what failed first, whatever else was raised."""
    one = Save(new, path)
    try:
        with _entered(one):
            yield
    finally:
        if one.failures:
            raise one.failures[0]


def loading() -> contextlib.AbstractContextManager[None]:
    """Lets each process load its own file, within the context."""
    return _entered(_LOAD)


@contextlib.contextmanager
def _entered(value: object) -> Iterator[None]:
    token = _under_way.set(value)
    try:
        yield
    finally:
        _under_way.reset(token)
