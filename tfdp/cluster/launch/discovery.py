"""The number of ranks that may run on this host now, as a command of the user's says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

# The time that the command has to answer.
ANSWER_SECONDS = 30.0

_LOOK_SECONDS = 0.1
_ENDING_SECONDS = 5.0


class DiscoveryError(ValueError):
    """An error where the command says no number."""


class _ClosedError(Exception):
    """The end of a question that nobody waits for any more."""


def discovered(command: str, look: Callable[[], None] = lambda: None) -> int:
    """Runs the command by `sh -c`, and returns the whole number that it prints.

    Args:
      command: The command. It ends with all that it has started after `ANSWER_SECONDS`.
      look: Called again and again meanwhile; what it raises ends the command.

    Raises:
      DiscoveryError: The command fails, takes longer, or prints something else.

    >>> discovered("echo 3")
    3
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    with subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, errors = process.communicate(timeout=_LOOK_SECONDS)
                    break
                if time.monotonic() >= deadline:
                    raise _error(command, f"no end within {ANSWER_SECONDS:g} s")
                look()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        said = " ".join(errors.split())[-200:]
        raise _error(command, f"exit code {process.returncode}{said and f' and {said!r}'}")
    text = output.strip()
    if not (text.isascii() and text.isdigit()):
        raise _error(command, repr(text[-200:]))
    return int(text)


class Discovery:
    """The last answer of the command, which a thread asks again and again.

    Where the command fails, its last answer stays in force, and `say` is told once, until it
    answers again.

    Args:
      command: The command.
      every_seconds: The pause between two questions.
      say: Called with a sentence, in the thread.
      look: Called again and again during the first question; what it raises ends that.

    Raises:
      DiscoveryError: The first answer is no number.

    >>> with Discovery("echo 3", 10.0, print) as discovery:
    ...     discovery.latest
    3
    """

    def __init__(
        self,
        command: str,
        every_seconds: float,
        say: Callable[[str], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._command, self._every, self._say = command, every_seconds, say
        self._latest = discovered(command, look=look)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="tfdp-discovery", daemon=True)

    @property
    def latest(self) -> int:
        """The number of ranks that may run, as last heard."""
        return self._latest

    def __enter__(self) -> Discovery:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()  # which ends the command, too
        self._thread.join(_ENDING_SECONDS)

    def _look(self) -> None:
        if self._ends.is_set():
            raise _ClosedError

    def _ask(self) -> None:
        fails = False
        while not self._ends.wait(self._every):
            try:
                self._latest = discovered(self._command, look=self._look)
                fails = False
            except _ClosedError:
                return
            except (DiscoveryError, OSError) as error:
                if not fails and not self._ends.is_set():
                    self._say(f"{error} Until then its last answer counts: {self._latest}.")
                fails = True


def _error(command: str, received: str) -> DiscoveryError:
    return DiscoveryError(
        f"`discover` must be a command that prints how many ranks may run here now; received "
        f"{received} of {command!r}; mend it, or try `--discover 'cat slots'` with a number in "
        "the file `slots`."
    )
