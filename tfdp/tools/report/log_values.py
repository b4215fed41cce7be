"""The values of one JSON object of a log, checked as they are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class LogError(ValueError):
    """An error where a log directory cannot be read; it says what is missing and what to do.

    >>> raise LogError("`logs` must be a log directory ...")
    Traceback (most recent call last):
    tfdp.tools.report.log_values.LogError: `logs` must be a log directory ...
    """


class Fields:
    """The values of one line of a log.

    Args:
      values: The JSON object.
      where: The file and line, for errors.

    Raises:
      LogError: A value is missing or is not of its kind; raised by all methods.

    >>> fields = Fields({"step": 3, "loss": "nan"}, where="rank0.jsonl, line 2")
    >>> fields.whole("step"), fields.number_or_none("loss"), fields.number_or_none("seconds")
    (3, nan, None)
    >>> fields.number("step", least=4)
    Traceback (most recent call last):
    tfdp.tools.report.log_values.LogError: rank0.jsonl, line 2: `step` must be a number of at ...
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def whole(self, key: str, least: int = 0) -> int:
        """Returns a whole number."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise self._error(key, f"a whole number of at least {least}")
        return value

    def whole_or_none(self, key: str) -> int | None:
        """Returns a whole number that may be missing or null."""
        return None if self._values.get(key) is None else self.whole(key)

    def number(self, key: str, least: float = -math.inf) -> float:
        """Returns a number that is finite."""
        value = as_number(self._values.get(key))
        if value is None or not math.isfinite(value) or value < least:
            limit = "" if least == -math.inf else f" of at least {least:g}"
            raise self._error(key, f"a number{limit}")
        return value

    def number_or_none(self, key: str) -> float | None:
        """Returns a number that may be missing, null, infinite or NaN."""
        value = self._values.get(key)
        if value is None:
            return None
        number = as_number(value)
        if number is None:
            raise self._error(key, "a number")
        return number

    def seconds_or_none(self, key: str) -> float | None:
        """Returns a time that may be missing; a clock that goes back gives 0."""
        number = self.number_or_none(key)
        return None if number is None or not math.isfinite(number) else max(0.0, number)

    def text(self, key: str) -> str:
        """Returns a text."""
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self._error(key, "a text")
        return value

    def text_or_none(self, key: str) -> str | None:
        """Returns the value as a text, whatever it is; None if it is missing or null."""
        value = self._values.get(key)
        return None if value is None else str(value)

    def numbers(self, key: str) -> dict[str, float]:
        """Returns an object of numbers by name, without other values; {} if it is missing."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(key, "an object of numbers")
        found = {name: as_number(item) for name, item in value.items()}
        return {name: number for name, number in found.items() if number is not None}

    def _error(self, key: str, kind: str) -> LogError:
        received = repr(self._values[key]) if key in self._values else "nothing"
        if len(received) > 80:
            received = received[:77] + "..."
        return LogError(
            f"{self.where}: `{key}` must be {kind}, but received {received}. The file is damaged: "
            "take it from the host that wrote it, or delete that line."
        )


def as_number(value: Any) -> float | None:
    """Reads a number of a log, in which NaN and infinity are texts; None for anything else.

    >>> as_number("-inf"), as_number(2), as_number(True), as_number("many")
    (-inf, 2.0, None, None)
    """
    if type(value) is float:  # nearly all numbers are
        return value
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
