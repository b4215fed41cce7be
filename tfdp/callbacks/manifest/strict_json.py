"""The conversion of any object to strict JSON, also of one that fails to answer."""

import json
import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

# An object's address differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEEPEST = 50
_MOST_CHARACTERS = 120


def plain(value: Any) -> Any:
    """Converts `value` to JSON's types: NaN and infinities to strings, other objects to their repr.

    A value that raises, holds itself or is more than 50 deep becomes a text that says so.

    >>> plain({"rate": float("nan"), 1: (2, {3}), "f": len})
    {'rate': 'nan', '1': [2, [3]], 'f': '<built-in function len>'}
    """
    return _plain(value, ())


def text_of(value: Any) -> str:
    """Returns `value` as it stands in the file.

    >>> print(text_of({"b": 1}))
    {
     "b": 1
    }
    """
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)


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


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    try:
        return _converted(value, within)
    except Exception as error:
        return trouble(error)


def _converted(value: Any, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _written(value)
    if isinstance(value, numbers.Integral):
        number = int(value)
        str(number)  # raises where it has more digits than Python writes
        return number
    if isinstance(value, numbers.Real):
        real = float(value)
        return real if math.isfinite(real) else str(real)
    if id(value) in within or len(within) >= _DEEPEST:
        return "cannot be described: it holds itself or is too deep"
    within = (*within, id(value))
    if isinstance(value, Mapping):
        return {_written(str(key)): _plain(item, within) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, within) for item in value]
    if isinstance(value, set | frozenset):
        return [_plain(item, within) for item in sorted(value, key=repr)]
    if hasattr(value, "tolist"):  # of NumPy
        return _plain(value.tolist(), within)
    return _written(_ADDRESS.sub("", repr(value)))


def _written(text: str) -> str:
    """Escapes what UTF-8 cannot hold: undecoded bytes that Python keeps in names of files."""
    return text.encode("utf-8", "backslashreplace").decode()
