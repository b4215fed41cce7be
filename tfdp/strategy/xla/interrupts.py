"""Signals that wait while a program has taken values and not yet left the new ones.

Python runs a signal's handler between any two instructions of the main thread, most likely as a
long call returns. One that raises there, as Ctrl-C does in a notebook, would lose what the call
returns: the new values of all variables, whose old ones the program has written over.
"""

import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Those by which a training is stopped: by hand, by a scheduler, after some time.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)

# Without the enumerations that Python makes of what they return, which takes 10 us of each step.
_set, _get = inspect.unwrap(signal.signal), inspect.unwrap(signal.getsignal)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Has signals that end a training wait until the context ends, where Python handles them.

    >>> def late(*_):
    ...     raise TimeoutError("it takes too long")
    >>> before = signal.signal(signal.SIGALRM, late)
    >>> def interrupted():
    ...     with held():
    ...         signal.raise_signal(signal.SIGALRM)
    ...         print("is done")
    >>> interrupted()
    Traceback (most recent call last):
        ...
    TimeoutError: it takes too long
    >>> _ = signal.signal(signal.SIGALRM, before)
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    handled = [number for number in _ENDING if callable(_get(number))]
    with contextlib.ExitStack() as stack:
        for number in handled:
            stack.enter_context(_held(number))
        yield


@contextlib.contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    before: Any = _get(number)
    frames: list[object] = []
    try:
        _set(number, lambda _, frame: frames.append(frame))
        yield
    finally:
        _set(number, before)
        if frames:
            before(number, frames[0])
