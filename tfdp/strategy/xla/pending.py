"""Computations of all processes' devices that this process may wait for.

JAX has no way to end such a wait: see `processes`.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tfdp.strategy.xla._jax import jax  # noqa: F401 - of the examples


@dataclasses.dataclass
class _Pending:
    """What the process has begun, with the lock under which it is counted.

    Attributes:
      open_calls: How many calls of all processes are made now.
      outputs: What tells whether the latest program is computed.
      calls: How many calls have begun.
      steps: How many programs have begun.
    """

    open_calls: int = 0
    outputs: Sequence[Any] = ()
    calls: int = 0
    steps: int = 0
    lock: Any = dataclasses.field(default_factory=threading.RLock)


_pending = _Pending()


@contextlib.contextmanager
def call() -> Iterator[None]:
    """Notes, within the context, a call that all processes make together."""
    with _pending.lock:
        _pending.calls += 1
        _pending.open_calls += 1
    try:
        yield
    finally:
        with _pending.lock:
            _pending.open_calls -= 1


def note(outputs: Sequence[Any]) -> None:
    """Notes the outputs of the latest program, which may still be computed."""
    with _pending.lock:
        _pending.steps += 1
        _pending.outputs = outputs[:1]


def wait() -> None:
    """Waits until the latest program's outputs are computed.

    >>> note([jax.numpy.ones(2)])
    >>> wait()
    >>> is_any()
    False
    """
    for array in _pending.outputs:
        if not array.is_deleted():
            array.block_until_ready()


def is_any() -> bool:
    """Returns whether something is still computed; any thread may ask.

    >>> with call():
    ...     is_any()
    True
    >>> note([jax.numpy.ones(2).block_until_ready()])
    >>> is_any()
    False
    """
    outputs = _pending.outputs
    return _pending.open_calls > 0 or not all(
        array.is_deleted() or array.is_ready() for array in outputs
    )


def begun() -> tuple[int, int]:
    """Returns how many steps have begun here, and how many calls; any thread may ask.

    A call within which no step was noted yet counts as one.
    """
    with _pending.lock:
        return _pending.steps + (_pending.open_calls > 0), _pending.calls
