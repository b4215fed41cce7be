"""A number that may change while a run goes on: `MIN:MAX`."""

from __future__ import annotations

import re
from typing import NamedTuple


class Span(NamedTuple):
    """The least and the most of something.

    >>> Span(2, 4).most
    4
    """

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def span(text: str) -> int | Span:
    """Returns the number that `text` is, or the span `MIN:MAX`.

    Raises:
      ValueError: The text is neither.

    >>> span("4"), span("2:4")
    (4, Span(least=2, most=4))
    >>> span("4:2")
    Traceback (most recent call last):
    ValueError: it must be a whole number or MIN:MAX; received '4:2'; do `2:4`.
    """
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is not None and int(found[1]) <= int(found[2]):
        return Span(int(found[1]), int(found[2]))
    fixed = f"{found[2]}:{found[1]}" if found else "2:4"
    raise ValueError(f"it must be a whole number or MIN:MAX; received {text!r}; do `{fixed}`.")


def as_span(value: int | Span) -> Span:
    """Returns a number as the span that holds nothing else.

    >>> as_span(3)
    Span(least=3, most=3)
    """
    return value if isinstance(value, Span) else Span(value, value)
