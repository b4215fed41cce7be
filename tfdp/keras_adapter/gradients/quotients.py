"""Quotients of tables' gradients, whose rows Keras counts only as a step runs.

An optimizer such as RMSprop divides the rows of an embedding's gradient by a whole table. Keras
then looks for zeros in the table, and adds their rows to those of the quotient. A program of fixed
sizes divides the whole gradient, which gives the same numbers.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.hooks import hook
from tfdp.keras_adapter._keras import numpy

_FIXED: contextvars.ContextVar[bool] = contextvars.ContextVar("of fixed sizes", default=False)


@contextlib.contextmanager
def of_fixed_sizes() -> Iterator[None]:
    """Has quotients of rows that are traced within be whole, so that no run decides their size."""
    token = _FIXED.set(True)
    try:
        yield
    finally:
        _FIXED.reset(token)


@hook(numpy, "divide")
def divide(original: Callable[..., Any], x1: Any, x2: Any) -> Any:
    """Divides rows of a table as a whole table in a program of fixed sizes."""
    is_of_rows = isinstance(x1, tf.IndexedSlices) and getattr(x2, "shape", None)
    return original(tf.convert_to_tensor(x1) if _FIXED.get() and is_of_rows else x1, x2)
