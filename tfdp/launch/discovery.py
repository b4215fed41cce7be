"""The number of ranks that may run on this host now, as a command of the user's says."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

# The time that the command has to answer.
ANSWER_SECONDS = 30.0


class DiscoveryError(ValueError):
    """An error where the command says no number."""


def discovered(command: str, seconds: float = ANSWER_SECONDS) -> int:
    """Runs the command by `sh -c`, and returns the whole number that it prints.

    Raises:
      DiscoveryError: The command fails, takes longer than `seconds`, or prints something else.

    >>> discovered("echo 3")
    3
    """
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _error(command, f"no end within {seconds:g} s") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-200:]
        raise _error(command, f"exit code {done.returncode}{said and f' and {said!r}'}")
    text = done.stdout.strip()
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

    Raises:
      DiscoveryError: The first answer is no number.

    >>> with Discovery("echo 3", 10.0, print) as discovery:
    ...     discovery.latest
    3
    """

    def __init__(self, command: str, every_seconds: float, say: Callable[[str], None]) -> None:
        self._command, self._every, self._say = command, every_seconds, say
        self._latest = discovered(command)
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
        self._ends.set()  # the thread may be in the command, which ends by itself

    def _ask(self) -> None:
        fails = False
        while not self._ends.wait(self._every):
            try:
                self._latest = discovered(self._command)
                fails = False
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
