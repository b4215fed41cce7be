"""The start of ranks by the installed MPI: which launcher, with which words.

`mpiexec` starts a supervisor for each rank (:mod:`tfdp.cluster.launch.rank_supervisor`), which
connects its rank to `tfdp run` by named pipes. Through `mpiexec` itself goes nothing but what the
ranks need to find each other. Its own clean-up is off, for it would end the ranks that still live
when one has ended, and hide which of them failed first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from tfdp.cluster.launch.rank_process import supervised
from tfdp.cluster.mpi_installation import (
    OPEN_MPI,
    Mpiexec,
    check_fit,
    find_library,
    find_mpiexec,
)

_DEFAULTS = {
    # By default Intel MPI binds each rank to some cores; `tfdp run` leaves that to the user.
    "I_MPI_PIN": "0",
    # By default a rank that raises an error waits at its end for all others, which wait for it.
    "MPI4PY_RC_FINALIZE": "0",
}

# Open MPI's settings (before version 5, and since) for where ranks make the memory they share, in
# files that would outlive ranks that are killed.
_SHARED_MEMORY = ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory")

_PYTHON = re.compile(r"python[0-9.]*$")


def fitting_mpiexec(command: Sequence[str], environ: Mapping[str, str]) -> Mpiexec:
    """Returns the launcher of the installed MPI, once it is known that the ranks can use it.

    mpi4py is looked for in the command's Python, and in this one for any other program.

    Raises:
      ClusterError: There is no launcher, or the ranks' mpi4py is missing or of another MPI.
    """
    launcher = find_mpiexec(environ)
    python = command[0] if _PYTHON.search(command[0]) else sys.executable
    check_fit(launcher, find_library(python, environ))
    return launcher


def environment(environ: Mapping[str, str], memory: str) -> dict[str, str]:
    """Returns the environment of the launcher, which hands it on to the ranks.

    Args:
      environ: The environment of `tfdp run`.
      memory: A folder for the files by which ranks share memory.
    """
    return {**_DEFAULTS, **dict.fromkeys(_SHARED_MEMORY, memory), **environ}


def options(launcher: Mpiexec, processes: int) -> list[str]:
    """Returns the words for N ranks on this host, also inside a job of many hosts.

    >>> options(Mpiexec("/opt/bin/mpiexec", "MPICH"), 2)
    ['/opt/bin/mpiexec', '-disable-auto-cleanup', '-launcher', 'fork', '-hosts', 'localhost']
    """
    if launcher.vendor != OPEN_MPI:
        here = ["-launcher", "fork", "-hosts", "localhost"]
        return [launcher.path, "-disable-auto-cleanup", *here]
    here = ["--host", f"localhost:{processes}", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [launcher.path, "--enable-recovery", *as_root, *here]


def words(launcher: Mpiexec, processes: int, folder: str, command: Sequence[str]) -> list[str]:
    """Returns the whole command of the launcher.

    Args:
      launcher: The launcher.
      processes: The number of ranks.
      folder: The folder with the ranks' named pipes.
      command: The command of each rank.
    """
    variable = "OMPI_COMM_WORLD_RANK" if launcher.vendor == OPEN_MPI else "PMI_RANK"
    ranks = ["-n", str(processes), *supervised(folder, variable), *command]
    return [*options(launcher, processes), *ranks]


def one_line(launcher: Mpiexec, rank_words: Sequence[Sequence[str]]) -> list[str]:
    """Returns a command that starts each rank without a supervisor, by words of its own."""
    found = options(launcher, len(rank_words))
    for number, each in enumerate(rank_words):
        found += [":"] * (number > 0) + ["-n", "1", *each]
    return found
