"""Arithmetic on known entries: whole numbers, sizes and booleans, and what is unknown.

Lengths are 0 or more, and whole numbers do not overflow where sizes are among them, as no tensor
has so many entries. What does not follow from that is `UNKNOWN`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdp.partition.sizes import UNKNOWN, AtLeast, Size, divided, is_positive, is_size
from tfdp.partition.source import SourceOp

# Computes the values of an operation's outputs from those of its inputs.
Compute: TypeAlias = Callable[
    [SourceOp, "Sequence[np.ndarray]"], "Sequence[np.ndarray | None] | None"
]


def each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Returns what a function gives for each entry of arrays that are broadcast together."""
    together = np.broadcast_arrays(*arrays)
    found = np.empty(together[0].shape, object)
    for at in np.ndindex(found.shape):
        found[at] = function(*(array[at] for array in together))
    return found


def fitted(value: Any, dtype: tf.DType) -> Any:
    """Returns an entry as a dtype holds it: whole numbers wrap around."""
    if dtype == tf.bool:
        return value if isinstance(value, bool) else UNKNOWN
    if isinstance(value, AtLeast):
        return value
    low, high = int(dtype.min), int(dtype.max)
    if isinstance(value, Size):
        return value if all(low <= factor <= high for factor in value.terms.values()) else UNKNOWN
    return (value - low) % (high - low + 1) + low if is_size(value) else UNKNOWN


def at_least(a: Any, b: Any) -> bool:
    if isinstance(a, AtLeast):
        a = a.least
    return is_size(a) and is_size(b) and is_positive(a - b + 1)


def floor_divide(a: Any, b: Any) -> Any:
    """Returns a // b: of sizes, where nothing is left over."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else UNKNOWN
    quotient = divided(a, b)
    return UNKNOWN if quotient is None else quotient


def truncate_divide(a: Any, b: Any) -> Any:
    """Returns a / b, rounded towards zero: of sizes, where nothing is left over."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return floor_divide(a, b)


def floor_modulo(a: Any, b: Any) -> Any:
    """Returns a % b, of the sign of b: of sizes, where it is zero."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else UNKNOWN
    return UNKNOWN if divided(a, b) is None else 0


def maximum(a: Any, b: Any) -> Any:
    if at_least(a, b) or at_least(b, a):
        return a if at_least(a, b) else b
    sizes = [each for each in (a, b) if is_size(each)]
    return AtLeast(sizes[0]) if sizes else UNKNOWN


def minimum(a: Any, b: Any) -> Any:
    return a if at_least(b, a) else b if at_least(a, b) else UNKNOWN


def sign(a: Any) -> Any:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    return 1 if is_positive(a) else -1 if is_positive(-a) else UNKNOWN


def equal(a: Any, b: Any) -> Any:
    if isinstance(a, bool) and isinstance(b, bool):
        return a == b
    if not (is_size(a) and is_size(b)):
        return UNKNOWN
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    return False if is_positive(difference) or is_positive(-difference) else UNKNOWN


def less(a: Any, b: Any) -> Any:
    return False if at_least(a, b) else True if at_least(b - 1, a) else UNKNOWN


def negated(a: Any) -> Any:
    return not a if isinstance(a, bool) else UNKNOWN


def both(a: Any, b: Any) -> Any:
    if a is False or b is False:
        return False
    return True if a is True and b is True else UNKNOWN


def select(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, bool):
        return a if condition else b
    return a if equal(a, b) is True else UNKNOWN


def cast(value: Any, dtype: tf.DType) -> Any:
    if isinstance(value, AtLeast):  # which may be too large for it
        return UNKNOWN
    if dtype != tf.bool:
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, (bool, int)):
        return bool(value)
    return True if is_positive(value) or is_positive(-value) else UNKNOWN


def broadcast_size(a: Any, b: Any) -> Any:
    """Returns the size that two sizes are broadcast to, given that they can be."""
    if equal(a, b) is True or (is_size(b) and b == 1):
        return a
    if is_size(a) and a == 1:
        return b
    for size in (a, b):  # the other one is the same or 1
        if isinstance(size, int):
            return size
    return UNKNOWN


def _elementwise(function: Callable[..., Any]) -> Compute:
    return lambda op, arrays: [each(function, *arrays)]


def _reduced(combine: Callable[[Any, Any], Any], first: Any) -> Compute:
    """Returns what reduces an array over known axes; of no entries, to `first`."""

    def reduce(op: SourceOp, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        array, axes = arrays
        if not all(isinstance(axis, int) for axis in axes.flat):
            return None
        over = sorted({axis % array.ndim for axis in axes.flat}) if array.ndim else []
        kept = [axis for axis in range(array.ndim) if axis not in over]
        rows = array.transpose([*kept, *over])
        found = np.empty(rows.shape[: len(kept)], object)
        for at in np.ndindex(found.shape):
            entries = list(rows[(*at, ...)].flat)
            found[at] = functools.reduce(combine, entries) if entries else first
        if op.attr("keep_dims"):
            for axis in over:
                found = np.expand_dims(found, axis)
        return [found]

    return reduce


def _select_rows(op: SourceOp, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    condition, a, b = arrays
    if condition.ndim == 1:  # chooses whole rows
        condition = condition.reshape([-1] + [1] * (a.ndim - 1))
    return [each(select, condition, a, b)]


def _cast(op: SourceOp, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    dtype = op.outputs[0].dtype
    return [each(lambda number: cast(number, dtype), arrays[0])]


_SIMPLE: dict[str, Callable[..., Any]] = {
    "Abs": lambda a: maximum(a, -a),
    "Add": lambda a, b: a + b,
    "AddN": lambda *values: functools.reduce(lambda a, b: a + b, values),
    "AddV2": lambda a, b: a + b,
    "Equal": equal,
    "FloorDiv": floor_divide,
    "FloorMod": floor_modulo,
    "Greater": lambda a, b: less(b, a),
    "GreaterEqual": lambda a, b: negated(less(a, b)),
    "Less": less,
    "LessEqual": lambda a, b: negated(less(b, a)),
    "LogicalAnd": both,
    "LogicalNot": negated,
    "LogicalOr": lambda a, b: negated(both(negated(a), negated(b))),
    "Maximum": maximum,
    "Minimum": minimum,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "NotEqual": lambda a, b: negated(equal(a, b)),
    "SelectV2": select,
    "Sign": sign,
    "Square": lambda a: a * a,
    "Sub": lambda a, b: a - b,
    "TruncateDiv": truncate_divide,
}

NUMBERS: dict[str, Compute] = {
    **{type_: _elementwise(function) for type_, function in _SIMPLE.items()},
    "All": _reduced(both, True),
    "Any": _reduced(_SIMPLE["LogicalOr"], False),
    "Cast": _cast,
    "Max": _reduced(maximum, UNKNOWN),
    "Min": _reduced(minimum, UNKNOWN),
    "Prod": _reduced(_SIMPLE["Mul"], 1),
    "Select": _select_rows,
    "Sum": _reduced(_SIMPLE["Add"], 0),
}
