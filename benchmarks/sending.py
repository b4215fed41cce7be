"""The ways to send less that are measured, as arguments of the strategy."""

from collections.abc import Mapping
from typing import Any


def made(words: str) -> Any:
    """Returns the object that `words` make.

    Args:
      words: An expression as a program writes it after `from tfdp.compression import *` and
        `from tfdp.synchronization import *`; constants of the benchmarks alone, for they are run.

    >>> made("ErrorFeedback(PowerSGD(4))").inner.rank
    4
    """
    import tfdp

    names = {
        name: getattr(module, name)
        for module in (tfdp.compression, tfdp.synchronization)
        for name in module.__all__
    }
    return eval(words, {"__builtins__": {}, "dict": dict}, names)


def arguments_of(words: str) -> Mapping[str, Any]:
    """Returns the keyword arguments of the strategy that `words` are; see `made`.

    >>> arguments_of("synchronization=LocalSGD(50)")["synchronization"].every
    50
    >>> arguments_of("")
    {}
    """
    return made(f"dict({words})")


def named(words: str) -> str:
    """Returns `words` as tables show them.

    >>> named("compression=ErrorFeedback(Int8())"), named("")
    ('ErrorFeedback(Int8())', 'whole gradients')
    """
    return words.partition("=")[2] or "whole gradients"
