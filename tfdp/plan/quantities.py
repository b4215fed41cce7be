"""Rates, times and sizes as people write them: `25gbit`, `50us`, `8GB`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {"mb": 1e6, "gb": 1e9, "tb": 1e12, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}


@dataclasses.dataclass(frozen=True)
class Link:
    """A link as a data sheet describes it: bits per second, and the seconds of a small message."""

    bits_per_second: float
    latency_seconds: float


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
    return int(_read(text, _COUNTS, "a number", text, "350M"))


def _read(part: str, units: Mapping[str, float], what: str, text: str, example: str) -> float:
    match = _NUMBER.fullmatch(part.strip())
    if match is None or match[2].lower() not in units or float(match[1]) == 0:
        raise ValueError(f"must be {what} above 0; received {text!r}; write it as {example}")
    return float(match[1]) * units[match[2].lower()]
