"""Checks of numbers that a user passes, in one form of message."""

from __future__ import annotations

import math
import numbers
from typing import Any


def real(name: str, value: Any, fix: str) -> float:
    """Returns `value` if it is a finite real number.

    Raises:
      ValueError: It is not one; the message ends with `fix`.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, but received {value!r}. {fix}")
    return value


def at_least(name: str, value: Any, least: float, fix: str) -> float:
    """Returns `value` if it is a finite number not below `least`; see `real`."""
    if real(name, value, fix) < least:
        raise ValueError(f"`{name}` must be at least {least:g}, but received {value!r}. {fix}")
    return value


def above(name: str, value: Any, bound: float, fix: str) -> float:
    """Returns `value` if it is a finite number above `bound`; see `real`."""
    if not real(name, value, fix) > bound:
        raise ValueError(f"`{name}` must be above {bound:g}, but received {value!r}. {fix}")
    return value


def fraction(name: str, value: Any, fix: str) -> float:
    """Returns `value` if it is in [0, 1); see `real`."""
    if not 0 <= real(name, value, fix) < 1:
        raise ValueError(f"`{name}` must be in [0, 1), but received {value!r}. {fix}")
    return value


def whole(name: str, value: Any, least: int, fix: str) -> int:
    """Returns `value` as an `int` if it is a whole number not below `least`; see `real`."""
    if at_least(name, value, least, fix) != int(value):
        raise ValueError(f"`{name}` must be a whole number, but received {value!r}. {fix}")
    return int(value)


def bounds(name: str, value: Any) -> tuple[float, float] | None:
    """Returns `value` as a pair of floats if it is (low, high), 0 <= low <= high; None stays None.

    `high` may be infinite.

    Raises:
      ValueError: It is neither.
    """
    if value is None:
        return None
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 <= low <= high:
        raise ValueError(
            f"`{name}` must be a pair (low, high) with 0 <= low <= high, but received {value!r}. "
            f"Use {name}=(0.0, 10.0), or None for no bounds."
        )
    return low, high
