"""Tracebacks of users' errors without tfdp's own frames, as Keras leaves out its own."""

import contextlib
import functools
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The folder of the package.
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Frames of these files are left out where tfdp has called them.
_BETWEEN = re.compile(
    rf"{re.escape(contextlib.__file__)}$|{os.sep}tensorflow{os.sep}python{os.sep}"
    "|__autograph_generated_file"
)


def filtered(function: _Function) -> _Function:
    """Makes a function whose errors are raised with the frames of their caller and of others alone.

    The frame that raised the error stays. `keras.config.disable_traceback_filtering` keeps all.

    >>> import traceback
    >>> @filtered
    ... def called(number):
    ...     return 1 / number
    >>> try:
    ...     called(0)
    ... except ZeroDivisionError as error:
    ...     print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
    ['<module>', 'called']
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            leave_out_own_frames(error)
            raise

    return wrapper  # type: ignore[return-value]


def leave_out_own_frames(error: BaseException) -> None:
    """Takes tfdp's frames out of an error's traceback, and out of those that it followed from.

    A bare `raise` after it adds none.
    """
    keras = sys.modules.get("keras")
    if keras is not None and not keras.config.is_traceback_filtering_enabled():
        return
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _of_others(each.__traceback__)
        each = each.__cause__ or each.__context__


def _of_others(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept, own = [], False
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        own = name.startswith(_OWN) or (own and _BETWEEN.search(name) is not None)
        if not own or trace.tb_next is None:
            kept.append(trace)
        trace = trace.tb_next
    found: types.TracebackType | None = None
    for each in reversed(kept):
        found = types.TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
