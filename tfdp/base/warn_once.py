"""Warnings that a process logs once, whatever strategies and trainings it has."""

import functools
import logging


@functools.cache
def warn_once(message: str, *arguments: object) -> None:
    """Logs a warning by the logger "tfdp", unless this process has logged it before.

    Args:
      message: The message, with places for the arguments as `logging` has them.
      arguments: The arguments, which can be hashed.
    """
    logging.getLogger("tfdp").warning(message, *arguments)
