"""Computations of all processes' devices that this process may wait for.

JAX has no way to end such a wait: see `processes`.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tfdp.strategy.xla._jax import jax  # noqa: F401 - of the examples

_calls: list[str] = []
_outputs: list[Any] = []
_numbers_of_calls, _numbers_of_steps = itertools.count(1), itertools.count(1)
_call, _step = [0], [0]  # the numbers of the latest


@contextlib.contextmanager
def call() -> Iterator[None]:
    """Notes, within the context, a call that all processes make together."""
    _call[0] = next(_numbers_of_calls)
    _calls.append("")
    try:
        yield
    finally:
        _calls.pop()


def note(outputs: Sequence[Any]) -> None:
    """Notes the outputs of the latest program, which may still be computed."""
    _step[0] = next(_numbers_of_steps)
    _outputs[:] = outputs[:1]


def wait() -> None:
    """Waits until the latest program's outputs are computed.

    >>> note([jax.numpy.ones(2)])
    >>> wait()
    >>> is_any()
    False
    """
    for array in _outputs:
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
    return bool(_calls) or not all(array.is_deleted() or array.is_ready() for array in _outputs[:])


def begun() -> tuple[int, int]:
    """Returns how many steps have begun here, and how many calls; any thread may ask.

    A call within which no step was noted yet counts as one.
    """
    return _step[0] + bool(_calls), _call[0]
