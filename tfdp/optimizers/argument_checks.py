"""The checks of numbers that a user passes, in one form of message."""

import math
import numbers
from typing import Any


def real(name: str, value: Any, fix: str) -> float:
    """Returns `value` as a float, of its own kind if it is one, if it is a finite real number.

    Raises:
      ValueError: `value` is not such a number; the message ends with `fix`.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, but received {value!r}. {fix}")
    # NumPy's float32 and Python's fractions are real numbers too, but JSON cannot hold them.
    return value if isinstance(value, float) else float(value)


def at_least(name: str, value: Any, least: float, fix: str) -> float:
    """Returns `value` if it is a finite number not below `least`; see `real`."""
    number = real(name, value, fix)
    if number < least:
        raise ValueError(f"`{name}` must be at least {least:g}, but received {value!r}. {fix}")
    return number


def above(name: str, value: Any, bound: float, fix: str) -> float:
    """Returns `value` if it is a finite number above `bound`; see `real`."""
    number = real(name, value, fix)
    if not number > bound:
        raise ValueError(f"`{name}` must be above {bound:g}, but received {value!r}. {fix}")
    return number


def fraction(name: str, value: Any, fix: str) -> float:
    """Returns `value` if it is in [0, 1); see `real`."""
    number = real(name, value, fix)
    if not 0 <= number < 1:
        raise ValueError(f"`{name}` must be in [0, 1), but received {value!r}. {fix}")
    return number


def whole(name: str, value: Any, least: int, fix: str) -> int:
    """Returns `value` as an `int` if it is a whole number not below `least`; see `real`."""
    at_least(name, value, least, fix)
    if value != int(value):
        raise ValueError(f"`{name}` must be a whole number, but received {value!r}. {fix}")
    return int(value)


def bounds(name: str, value: Any) -> tuple[float, float] | None:
    """Returns `value` as a pair of floats if it is (low, high), 0 <= low <= high; None stays None.

    `high` may be infinite.

    Raises:
      ValueError: `value` is neither.
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
