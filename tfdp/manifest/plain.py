"""Anything as strict JSON."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping
from typing import Any

# An object's address differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def plain(value: Any) -> Any:
    """`value` in JSON's types; not-a-number and infinities are strings, other objects their repr.

    Example:
        >>> plain({"rate": float("nan"), 1: (2, {3}), "f": len})
        {'rate': 'nan', '1': [2, [3]], 'f': '<built-in function len>'}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value, key=repr)]
    if hasattr(value, "tolist"):  # of NumPy
        return plain(value.tolist())
    return _ADDRESS.sub("", repr(value))


def text_of(value: Any) -> str:
    """`value` as it stands in the file.

    Example:
        >>> print(text_of({"b": 1}))
        {
         "b": 1
        }
    """
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)
