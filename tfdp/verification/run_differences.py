"""The differences between runs, and the test which of them rounding does not explain.

The module uses NumPy only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfdp.verification.readings import GRADIENTS, OPTIMIZER, STATE, WEIGHTS, Readings

#: The largest difference, divided by the largest value, by step, part and path.
Table = dict[tuple[int, str, str], float]

_VARIABLES = {WEIGHTS, STATE, OPTIMIZER}

# A difference counts if it is more than so many times that of a control.
CONTROL_FACTOR = 10.0

# The kinds of NumPy's arrays of strings, and of objects, as which TensorFlow gives them.
_TEXT = "SUO"


def largest(arrays: Iterable[np.ndarray]) -> float:
    """Returns the largest finite absolute value in arrays; 0 if there is none."""
    finite = [numbers(array) for array in arrays if array.dtype.kind not in _TEXT]
    finite = [np.abs(a[np.isfinite(a)]) for a in finite]
    return max((float(a.max(initial=0.0)) for a in finite), default=0.0)


def difference(actual: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """Returns the largest difference of two arrays, divided by `scale`.

    A difference is infinite if shapes differ, if a number is finite in one array only, or if
    `scale` is 0, and between texts. Integers and booleans have no rounding: theirs counts as at
    least 1.
    """
    if actual.shape != expected.shape:
        return np.inf
    kind = expected.dtype.kind
    if kind in "iub" + _TEXT:  # float64 has not all integers
        alike = np.asarray(actual == expected)
    else:
        actual, expected = numbers(actual), numbers(expected)
        alike = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if np.all(alike):
        return 0.0
    if kind in _TEXT:
        return np.inf
    apart = np.abs(numbers(actual)[~alike] - numbers(expected)[~alike])
    if not np.all(np.isfinite(apart)) or scale == 0.0:
        return np.inf
    return max(float(apart.max()) / scale, 1.0 if kind in "iub" else 0.0)


def differences(reference: Sequence[Readings], other: Sequence[Readings]) -> Table:
    """Returns the differences of two runs at each step, for each part and path of either.

    A difference is divided by the largest value of all steps: among all weights, among all
    gradients, among an optimizer's slots of one kind, or else among the path's own values. A number
    or gradient that only one run has at a step is infinitely different. Two things are left out if
    only one run has them: a variable, such as that of an unused optimizer that one run builds, and
    a part that the other run never has, such as gradients, which XLA hides.
    """
    scales = _scales(reference)
    parts = _parts(reference) & _parts(other)
    table: Table = {}
    for step, (expected, actual) in enumerate(zip(reference, other, strict=True)):
        if not expected or not actual:
            continue  # not built yet
        for key in {**expected, **actual}:
            if key in expected and key in actual:
                wanted, scale = expected[key][0], scales[_kind(key)]
                table[step, *key] = max(difference(a, wanted, scale) for a in actual[key])
            elif key[0] in parts - _VARIABLES:
                table[step, *key] = np.inf
    return table


def apart(table: Table, controls: Sequence[Table], tolerance: float) -> Table:
    """Returns the differences that are above `tolerance` and ten times those of the controls."""
    noise = of_controls(controls)
    return {
        key: value
        for key, value in table.items()
        if value > tolerance and value > CONTROL_FACTOR * noise.get(key[1:], 0.0)
    }


def of_controls(controls: Sequence[Table]) -> Mapping[tuple[str, str], float]:
    """Returns for each part and path the largest difference of any control at any step.

    The step is disregarded: where rounding decides a sign, as with Adam on a gradient that should
    be zero, chance decides in which step the difference shows.
    """
    noise: dict[tuple[str, str], float] = {}
    for control in controls:
        for (_, part, path), value in control.items():
            noise[part, path] = max(noise.get((part, path), 0.0), value)
    return noise


def merged(tables: Iterable[Table]) -> Table:
    """Returns a table with the largest value that each entry has in any table."""
    found: Table = {}
    for table in tables:
        for key, value in table.items():
            found[key] = max(found.get(key, 0.0), value)
    return found


def _scales(reference: Sequence[Readings]) -> dict[Any, float]:
    scales: dict[Any, float] = {}
    for readings in reference:
        for key, copies in readings.items():
            scales[_kind(key)] = max(scales.get(_kind(key), 0.0), largest(copies))
    return scales


def _kind(key: tuple[str, str]) -> tuple[str, str]:
    """Returns the group of values among which the largest is the scale of a path's differences."""
    part, path = key
    if part in (WEIGHTS, GRADIENTS):
        return part, ""
    return (part, path.rsplit("_", 1)[-1]) if part == OPTIMIZER else key


def _parts(steps: Sequence[Readings]) -> set[str]:
    return {part for readings in steps for part, _ in readings}


def numbers(array: np.ndarray) -> np.ndarray:
    """Returns numbers in double precision: real ones, or complex ones."""
    return np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
