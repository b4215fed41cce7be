"""The command that each rank runs, found from the words that the user gave."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

NOT_FOUND = 127  # the exit codes that a shell gives
NOT_EXECUTABLE = 126


class CommandError(ValueError):
    """An error where the command cannot be started.

    Args:
      message: What must hold, what was received and the fix.
      exit_code: The code that a shell would exit with: 127 (not found) or 126 (not executable).
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def resolve(words: Sequence[str]) -> list[str]:
    """Returns the command with its program's full name.

    If the first word ends in `.py`, it is a script for the Python that runs the launcher, and the
    script's output is not buffered. Every other first word is looked up as by a shell, and then
    beside that Python, where the programs of an environment are that is not activated.

    Raises:
      CommandError: There is no such script or program, or it is not executable.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     script = pathlib.Path(folder, "train.py")
    ...     script.touch()
    ...     python, *rest = resolve([str(script), "--epochs", "3"])
    >>> python == sys.executable, rest[0], rest[-2:]
    (True, '-u', ['--epochs', '3'])
    >>> resolve(["no-such-program"])
    Traceback (most recent call last):
        ...
    tfdp.cluster.launch.rank_command.CommandError: `COMMAND` must be a program on the PATH, one ...
    """
    program, *arguments = words
    if program.endswith(".py"):
        if not os.path.isfile(program):
            raise CommandError(
                f"`COMMAND` must be a script that exists; received {program!r}, and there is no "
                f"such file in {os.getcwd()}; give the path of the script.",
                NOT_FOUND,
            )
        return [sys.executable, "-u", program, *arguments]
    found = shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
    if found is not None:
        return [found, *arguments]
    if os.path.isfile(program) and os.path.dirname(program):
        raise CommandError(
            f"`COMMAND` must be executable; received {program!r}, which is not; "
            f"do `chmod +x {program}`.",
            NOT_EXECUTABLE,
        )
    raise CommandError(
        f"`COMMAND` must be a program on the PATH, one beside {sys.executable}, or a script that "
        f"ends in .py; received {program!r}, which is neither; mend its name, or give its path "
        f"(`./{program}`).",
        NOT_FOUND,
    )
