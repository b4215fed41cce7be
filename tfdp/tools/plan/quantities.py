"""Rates, times and sizes as people write them: `25gbit`, `50us`, `8GB`."""

import dataclasses
import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# A small b after a large letter is a bit.
_SIZES = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZES |= {unit.lower(): times for unit, times in _SIZES.items()}
_OPERATIONS = {"gflops": 1e9, "tflops": 1e12, "pflops": 1e15}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_MOST_WEIGHTS = 10**15


@dataclasses.dataclass(frozen=True)
class Link:
    """A link as a data sheet describes it: bits per second, and the seconds of a small message."""

    bits_per_second: float
    latency_seconds: float


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip as a data sheet describes it: operations, and bytes of its memory, per second."""

    operations_per_second: float
    bytes_per_second: float


def chip(text: str) -> Chip:
    """Reads rates of operations and of memory.

    Raises:
      ValueError: It is none.

    >>> chip("495tflops,3.35TB")
    Chip(operations_per_second=495000000000000.0, bytes_per_second=3350000000000.0)
    """
    operations, _, memory = text.partition(",")
    what, example = "a chip's operations and bytes a second", "495tflops,3.35TB"
    return Chip(
        _read(operations, _OPERATIONS, what, text, example),
        _read(memory, _SIZES, what, text, example),
    )


def link(text: str) -> Link:
    """Reads a rate and a latency.

    Raises:
      ValueError: It is none.

    >>> link("25gbit,1ms")
    Link(bits_per_second=25000000000.0, latency_seconds=0.001)
    """
    rate, _, latency = text.partition(",")
    return Link(
        _read(rate, _RATES, "a rate and a latency", text, "25gbit,50us"),
        _read(latency, _TIMES, "a rate and a latency", text, "25gbit,50us"),
    )


def size(text: str) -> float:
    """Reads bytes.

    Raises:
      ValueError: It is no size.

    >>> size("8GB"), size("16GiB")
    (8000000000.0, 17179869184.0)
    """
    return _read(text, _SIZES, "a size", text, "8GB")


def count(text: str) -> int:
    """Reads a number of weights.

    Raises:
      ValueError: It is no number.

    >>> count("1.5B"), count("350M")
    (1500000000, 350000000)
    """
    found = _read(text, _COUNTS, "a number", text, "350M")
    if not 1 <= found <= _MOST_WEIGHTS:
        raise ValueError(f"must be from 1 to {_MOST_WEIGHTS:,}; received {text!r}; do 350M")
    return int(found)


def _read(part: str, units: Mapping[str, float], what: str, text: str, example: str) -> float:
    match = _NUMBER.fullmatch(part.strip())
    if match is not None:
        # Sizes alone differ by their letters' case.
        unit = match[2] if units is _SIZES else match[2].lower()
        found = float(match[1]) * units.get(unit, 0.0)
        if 0 < found < math.inf:
            return found
    raise ValueError(f"must be {what} above 0; received {text!r}; write it as {example}")
