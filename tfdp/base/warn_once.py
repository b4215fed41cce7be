"""Warnings that a process logs once, whatever strategies and trainings it has."""

import logging
from collections.abc import Hashable

# A set is written in one step: of two threads that warn of the same both may, and none fails.
_said: set[Hashable] = set()


def warn_once(message: str, *arguments: object, key: Hashable = None) -> None:
    """Logs a warning by the logger "tfdp", unless this process has logged it before.

    Args:
      message: The message, with places for the arguments as `logging` has them.
      arguments: The arguments, which can be hashed unless there is a key.
      key: What tells the warning from others; None: the message and its arguments.
    """
    key = key or (message, *arguments)
    if key not in _said:
        _said.add(key)
        logging.getLogger("tfdp").warning(message, *arguments)
