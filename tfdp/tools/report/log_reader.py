"""The reader of a log's lines: their values, checked by the types of `tfdp.base.log_lines`."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfdp.base.log_lines import FORMAT, KINDS, Record

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class LogError(ValueError):
    """An error where a log directory cannot be read; it says what is missing and what to do.

    >>> raise LogError("`logs` must be a log directory ...")
    Traceback (most recent call last):
    tfdp.tools.report.log_reader.LogError: `logs` must be a log directory ...
    """


def record(values: Mapping[str, Any], where: str) -> Record | None:
    """Returns the record of a line; None for kinds that this tfdp does not know.

    Args:
      values: The line's JSON object.
      where: The line's file and number, for errors.

    Raises:
      LogError: A value is missing or not of its kind, or the format is newer than this tfdp.

    >>> record({"kind": "end", "time": 12.5}, "rank0.jsonl, line 9").time
    12.5
    >>> record({"kind": "end", "time": "noon"}, "rank0.jsonl, line 9")
    Traceback (most recent call last):
    tfdp.tools.report.log_reader.LogError: rank0.jsonl, line 9: `time` must be a number, but ...
    """
    if not isinstance(values.get("kind"), str):
        raise _error(values, "kind", "a text", where)
    kind = KINDS.get(values["kind"])
    if kind is None:
        return None
    if "format" in kind.__slots__:
        check_format(values.get("format"), where)
    found: dict[str, Any] = {}
    for name, type_ in _FIELDS[kind]:
        value = values.get(name)
        if value is None and type_.endswith(" | None"):
            found[name] = None
            continue
        what, read = _READERS[type_]
        try:
            found[name] = read(value)
        except ValueError:
            raise _error(values, name, what, where) from None
    return kind(**found)


def json_object(text: bytes) -> dict[str, Any] | None:
    """Returns the JSON object of a line or file; None where it is none.

    >>> json_object(b'{"step": 3}'), json_object(b'{"st')
    ({'step': 3}, None)
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def check_format(format_: Any, what: str) -> None:
    """Refuses a format that this tfdp does not know.

    Raises:
      LogError: The format is newer.

    >>> check_format(1, "`logs/manifest.json`")
    """
    if isinstance(format_, int) and format_ > FORMAT:
        raise LogError(
            f"{what} must be of format {FORMAT}, which this tfdp reads, but is of format {format_}:"
            " a newer tfdp wrote it. Do `pip install --upgrade 'tfdp[report]'`."
        )


def _error(values: Mapping[str, Any], key: str, kind: str, where: str) -> LogError:
    received = repr(values[key]) if key in values else "nothing"
    if len(received) > 80:
        received = received[:77] + "..."
    return LogError(
        f"{where}: `{key}` must be {kind}, but received {received}. The file is damaged: take it "
        "from the host that wrote it, or delete that line."
    )


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:  # which a bool is not
        raise ValueError
    return value


def _number(value: Any) -> float:
    """Returns a number, in which NaN and infinity are texts."""
    if type(value) is float:  # nearly all numbers are
        return value
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is not int:
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _finite(value: Any, least: float = -math.inf) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number >= least):
        raise ValueError
    return number


def _amount_or_none(value: Any) -> float | None:
    """Returns an amount; a clock that goes back gives 0."""
    number = _number(value)
    return max(0.0, number) if math.isfinite(number) else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _numbers(value: Any) -> dict[str, float]:
    """Returns the numbers of an object by name, without its other values; {} if it is missing."""
    if not isinstance(value, dict | None):
        raise ValueError
    found = {}
    for name, item in (value or {}).items():
        with contextlib.suppress(ValueError):
            found[name] = _number(item)
    return found


# What must hold, and the function that checks and takes it, by the annotations of fields.
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Count": ("a whole number of at least 0", _whole),
    "Count | None": ("a whole number of at least 0", _whole),
    "Positive": ("a whole number of at least 1", functools.partial(_whole, least=1)),
    "float": ("a number", _finite),
    "float | None": ("a number", _number),
    "Amount": ("a number of at least 0", functools.partial(_finite, least=0.0)),
    "Amount | None": ("a number", _amount_or_none),
    "str": ("a text", _text),
    "str | None": ("a text", str),
    "bool": ("true or false", lambda value: value is True),
    "Mapping[str, float]": ("an object of numbers", _numbers),
    "Mapping[str, float] | None": ("an object of numbers", lambda value: _numbers(value) or None),
    "object": ("anything", lambda value: value),
}
_FIELDS = {
    kind: [(field.name, str(field.type)) for field in dataclasses.fields(kind)]
    for kind in KINDS.values()
}
