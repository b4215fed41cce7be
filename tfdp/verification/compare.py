"""How far runs are apart, and what of that rounding does not explain. Knows NumPy alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfdp.verification.readings import GRADIENTS, OPTIMIZER, STATE, WEIGHTS, Readings

#: By step, part and path: the largest difference over the largest value.
Table = dict[tuple[int, str, str], float]

_VARIABLES = {WEIGHTS, STATE, OPTIMIZER}

# A difference counts where it is so many times that of a control.
CONTROL_FACTOR = 10.0


def largest(arrays: Iterable[np.ndarray]) -> float:
    """The largest finite absolute value; 0 where there is none."""
    finite = [np.abs(a[np.isfinite(a)]) for a in map(_numbers, arrays)]
    return max((float(a.max(initial=0.0)) for a in finite), default=0.0)


def difference(actual: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """The largest difference over `scale`; infinite where only one is finite, or shapes differ.

    Whole numbers and flags agree or do not: where they do not, it is at least 1.
    """
    if actual.shape != expected.shape:
        return np.inf
    exact = expected.dtype.kind in "iub"
    actual, expected = _numbers(actual), _numbers(expected)
    alike = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if np.all(alike):
        return 0.0
    apart = np.abs(actual[~alike] - expected[~alike])
    if not np.all(np.isfinite(apart)) or scale == 0.0:
        return np.inf
    return max(float(apart.max()) / scale, 1.0 if exact else 0.0)


def differences(reference: Sequence[Readings], other: Sequence[Readings]) -> Table:
    """How far `other` is from `reference`, at each step, for each part and path of either.

    Relative to the largest value of all steps: among all weights, among all gradients, among the
    slots of one kind; of all else to the path's own. A number or gradient that only one of them has
    at a step is infinitely far; a variable is left out, as that of an optimizer which nobody uses
    and one of them builds, and so is a part that one never has, as XLA hides gradients.
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
    """The differences that count: above `tolerance` and ten times those of the controls."""
    noise = of_controls(controls)
    return {
        key: value
        for key, value in table.items()
        if value > tolerance and value > CONTROL_FACTOR * noise.get(key[1:], 0.0)
    }


def of_controls(controls: Sequence[Table]) -> Mapping[tuple[str, str], float]:
    """For each part and path the largest difference of any control at any step.

    Where rounding decides a sign, as with Adam on a gradient that should be zero, which step it
    shows in is chance.
    """
    noise: dict[tuple[str, str], float] = {}
    for control in controls:
        for (_, part, path), value in control.items():
            noise[part, path] = max(noise.get((part, path), 0.0), value)
    return noise


def merged(tables: Iterable[Table]) -> Table:
    """The largest of each entry."""
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
    """What a path's value is measured by."""
    part, path = key
    if part in (WEIGHTS, GRADIENTS):
        return part, ""
    return (part, path.rsplit("_", 1)[-1]) if part == OPTIMIZER else key


def _parts(steps: Sequence[Readings]) -> set[str]:
    return {part for readings in steps for part, _ in readings}


def _numbers(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)
