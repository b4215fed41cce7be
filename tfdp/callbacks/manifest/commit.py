"""The commit that the program is of, as git reports it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

# Git starts no daemon and takes no lock: another git may be at work in the repository.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")


def commit(script: str | None, directory: str, timeout_seconds: float = 5.0) -> Any:
    """Returns the commit of the repository of the program, or else of the working directory.

    Args:
      script: The program's file; None if there is none.
      directory: The working directory.
      timeout_seconds: How long git may take for all its answers.

    Returns:
      `revision`: 40 or 64 hexadecimal digits. `modified`: whether a file that git knows differs
      from the revision, or git does not know the program's own file; None if git did not answer.
      None in place of both without git, repository or commit.

    >>> commit(None, "/") is None
    True
    """
    deadline = time.monotonic() + timeout_seconds
    program = None if script is None else pathlib.Path(script).resolve()
    if program is not None and not program.is_relative_to(pathlib.Path(sys.prefix).resolve()):
        revision = _said(["rev-parse", "HEAD"], str(program.parent), deadline)
        if revision:
            known = _said(["ls-files", "--", program.name], str(program.parent), deadline)
            modified = True if known == "" else _modified(str(program.parent), deadline)
            return {"revision": revision, "modified": modified}
    revision = _said(["rev-parse", "HEAD"], directory, deadline)
    if not revision:
        return None
    return {"revision": revision, "modified": _modified(directory, deadline)}


def _modified(directory: str, deadline: float) -> bool | None:
    changes = _said(["status", "--porcelain", "--untracked-files=no"], directory, deadline)
    return None if changes is None else bool(changes)


def _said(words: Sequence[str], directory: str, deadline: float) -> str | None:
    """Returns what git prints; None if git fails, is missing, or does not answer in time."""
    try:
        done = subprocess.run(
            [*_GIT, *words],
            cwd=directory,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max(deadline - time.monotonic(), 0.0),
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
