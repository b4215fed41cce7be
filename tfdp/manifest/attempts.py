"""The questions to objects that may fail to answer, which must not end a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_CHARACTERS = 120


def attempted(describe: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what `describe` returns, or else the text of what it raised.

    >>> attempted(len, "abc"), attempted(len, 3)
    (3, "cannot be described: TypeError: object of type 'int' has no len()")
    """
    try:
        return describe(*arguments)
    except Exception as error:
        return trouble(error)


def trouble(error: Exception) -> str:
    """Returns a short text that stands in place of a description.

    >>> trouble(NotImplementedError())
    'cannot be described: NotImplementedError'
    """
    name = type(error).__name__
    try:
        lines = str(error).splitlines()
    except Exception:
        lines = []
    # The first line of a message says the most.
    said = f"{name}: {lines[0]}" if lines and lines[0] else name
    return f"cannot be described: {said[:_MOST_CHARACTERS]}"
