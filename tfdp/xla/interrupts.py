"""Signals that wait while a program has taken values and not yet left the new ones.

Python runs a signal's handler between any two instructions of the main thread, most likely as a
long call returns. One that raises there, as Ctrl-C does in a notebook, would lose what the call
returns: the new values of all variables, whose old ones the program has written over.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

# Those by which a training is stopped: by hand, by a scheduler, after some time.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Has signals that end a training wait until the context ends, where Python handles them.

    >>> def interrupted():
    ...     with held():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("is done")
    >>> interrupted()
    Traceback (most recent call last):
        ...
    KeyboardInterrupt
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    with contextlib.ExitStack() as stack:
        for number in _ENDING:
            stack.enter_context(_held(number))
        yield


@contextlib.contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    before = signal.getsignal(number)
    if not callable(before):  # it is no function of Python's
        yield
        return
    frames: list[object] = []
    try:
        signal.signal(number, lambda _, frame: frames.append(frame))
        yield
    finally:
        signal.signal(number, before)
        if frames:
            before(number, frames[0])  # type: ignore[arg-type]
