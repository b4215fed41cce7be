"""The file and line of operations, functions and classes in the user's program."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
import os
import threading
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdp import errors

# The files whose frames lie between a user's line and an operation.
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(inspect.getfile(module)), "") for module in (tf, keras, errors)
) + tuple(map(inspect.getfile, (contextlib, functools, threading)))


@dataclasses.dataclass(frozen=True)
class Operation:
    """The description of an operation, which outlives its graph.

    Attributes:
      line: The user's line that made the operation, such as "train.py:12", or "".
      kind: The type, such as "Mul".
      value: The value of a constant, as bytes.
    """

    line: str
    kind: str
    value: bytes

    @classmethod
    def of(cls, operation: tf.Operation) -> Operation:
        """Describes an operation of a graph."""
        frames = [f for f in operation.traceback or () if _is_users(f.filename)]
        line = _line(frames[-1].filename, frames[-1].lineno) if frames else ""
        constant = operation.type == "Const"
        value = operation.get_attr("value").SerializeToString() if constant else b""
        return cls(line, operation.type, value)


def first_other_line(reference: Iterable[Operation], other: Iterable[Operation]) -> str:
    """Returns the first line that made operations in `other` that `reference` lacks; "" if none."""
    left = collections.Counter(reference)
    for operation in other:
        if operation.line and not left[operation]:
            return operation.line
        left[operation] -= 1
    return ""


def place(thing: Any) -> str:
    """Returns the place of a user's function or of an object's class: "train.py:12", or ""."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    is_code = inspect.isclass(thing) or inspect.isroutine(thing)
    try:
        file, line = inspect.getsourcefile(thing if is_code else type(thing)), 0
        _, line = inspect.getsourcelines(thing if is_code else type(thing))
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code else (None, 0)
    return _line(file, line) if file and _is_users(file) else ""


def at(name: str, thing: Any) -> str:
    """Returns `name` in backticks, with the place of `thing` if that is in the user's program."""
    where = place(thing)
    return f"`{name}` ({where})" if where else f"`{name}`"


def _is_users(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and (not file.startswith("<") or _is_cell(file))


def _is_cell(file: str) -> bool:
    return "ipykernel" in file or file.startswith("<ipython")


def _line(file: str, line: int) -> str:
    if _is_cell(file):
        return f"line {line} of a cell"
    return f"{os.path.basename(file)}:{line}"
