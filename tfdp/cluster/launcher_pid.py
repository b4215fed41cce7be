"""The search for the process that started the ranks of this host."""

from __future__ import annotations

import os
import pathlib


def launcher_pid(variable: str) -> int:
    """Returns the id of the nearest ancestor that is no rank: MPI's launcher, or its proxy here.

    The parent is this ancestor unless each rank runs in a script of its own, which has `variable`,
    too. All ranks of one host get the same id.

    Args:
      variable: The name of the environment variable that holds the rank.

    >>> launcher_pid("NO_SUCH_RANK") == os.getppid()
    True
    """
    pid = os.getppid()
    while pid > 1 and _has_variable(pid, variable):
        pid = _parent(pid)
    return pid


def _has_variable(pid: int, variable: str) -> bool:
    try:
        environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another user's process, or no /proc: take it for the launcher
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in environ.split(b"\0"))


def _parent(pid: int) -> int:
    # The command's name, in parentheses, may hold spaces.
    _, _, rest = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return int(rest.split()[1])
