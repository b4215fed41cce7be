"""The end of a run between two attempts."""

from __future__ import annotations

from tfdp.launch.verdict import signal_name


class EndedError(Exception):
    """The end of a run.

    Args:
      code: The exit code.
      message: What is said of it; empty where all ended well.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def stopped_by(number: int) -> EndedError:
    """Returns the end by a signal, while no rank ran.

    >>> print(stopped_by(15))
    SIGTERM came, and no rank was started again.
    """
    return EndedError(128 + number, f"{signal_name(number)} came, and no rank was started again.")
