"""The ways to send less that are measured, as arguments of the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def arguments_of(words: str) -> Mapping[str, Any]:
    """Returns the keyword arguments of the strategy that `words` are.

    Args:
      words: Keyword arguments as a program writes them after `from tfdp.compression import *` and
        `from tfdp.synchronization import *`; constants of the benchmarks alone, for they are run.

    >>> arguments_of("synchronization=LocalSGD(50)")["synchronization"].every
    50
    >>> arguments_of("")
    {}
    """
    from tfdp import compression, synchronization

    names = {
        name: getattr(module, name)
        for module in (compression, synchronization)
        for name in module.__all__
    }
    return eval(f"dict({words})", {"__builtins__": {}, "dict": dict}, names)


def named(words: str) -> str:
    """Returns `words` as tables show them.

    >>> named("compression=ErrorFeedback(Int8())"), named("")
    ('ErrorFeedback(Int8())', 'whole gradients')
    """
    return words.partition("=")[2] or "whole gradients"
