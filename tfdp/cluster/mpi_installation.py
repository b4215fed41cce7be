"""The MPI that is installed here: its launcher, and the library that mpi4py loads.

Nothing here initialises MPI, and this process does not load it: a library of another MPI than the
launcher's would abort the process, or make a world of one rank.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping

from tfdp.errors import ClusterError

OPEN_MPI, INTEL_MPI, MPICH = "Open MPI", "Intel MPI", "MPICH"

# The words by which the launcher's `--version` names its MPI. MPICH's launcher is named Hydra, and
# Intel's is made from it.
_VENDORS = (
    ("Open MPI", OPEN_MPI),
    ("OpenRTE", OPEN_MPI),
    ("Intel(R) MPI", INTEL_MPI),
    ("HYDRA", MPICH),
)

_ASK_SECONDS = 60.0
_LIBRARY = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
vendor, version = MPI.get_vendor()
print(json.dumps([vendor, ".".join(map(str, version)), mpi4py.__version__]))
"""
_THREADS = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
MPI.Init_thread(MPI.THREAD_MULTIPLE)
for level in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"):
    if getattr(MPI, "THREAD_" + level) == MPI.Query_thread():
        print("MPI_THREAD_" + level)
MPI.Finalize()
"""


@dataclasses.dataclass(frozen=True)
class Mpiexec:
    """The installed program that starts MPI's ranks.

    Args:
      path: The program.
      vendor: "MPICH", "Intel MPI" or "Open MPI".
    """

    path: str
    vendor: str


@dataclasses.dataclass(frozen=True)
class Library:
    """The library of MPI that mpi4py loads.

    Args:
      vendor: The name that mpi4py has for it: "MPICH", "Intel MPI", "Open MPI", ...
      version: The version of the library.
      mpi4py: The version of mpi4py.
    """

    vendor: str
    version: str
    mpi4py: str


def find_mpiexec(environ: Mapping[str, str] = os.environ) -> Mpiexec:
    """Returns the `mpiexec` beside this Python, or else the first on the PATH.

    Raises:
      ClusterError: There is none, or it is of an MPI that tfdp does not know.
    """
    beside = str(pathlib.Path(sys.executable).parent)
    path = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec", path=environ.get("PATH"))
    if path is None:
        raise ClusterError(
            f"`mpiexec` must be beside Python or on the PATH; received neither {beside}/mpiexec "
            "nor one on the PATH; do `pip install mpich`, or load the host's MPI (on many clusters "
            "`module load openmpi`)."
        )
    said = _said([path, "--version"], environ)
    for words, vendor in _VENDORS:
        if words in said:
            return Mpiexec(path, vendor)
    raise ClusterError(
        f"`mpiexec` must be that of MPICH, Intel MPI or Open MPI; received {path}, whose "
        f"`--version` says {said.strip()[:200]!r}; put one of these first on the PATH, or do "
        "`pip install mpich`."
    )


def find_library(python: str = sys.executable, environ: Mapping[str, str] = os.environ) -> Library:
    """Returns the library that mpi4py loads in processes of a Python.

    Cost: a process of that Python, some 0.1 s.

    Args:
      python: The Python.
      environ: The environment of the process.

    Raises:
      ClusterError: mpi4py is not installed there, or finds no library.
    """
    said = _said([python, "-c", _LIBRARY], environ)
    try:
        return Library(*json.loads(said.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        reason = said.strip().splitlines()[-1:] or ["nothing"]
    fix = "`pip install 'tfdp[mpi]'`"
    if "No module named 'mpi4py'" not in reason[0]:
        fix = "`pip install mpich`, or load the MPI for which mpi4py was built (`module load ...`)"
    raise ClusterError(f"mpi4py must be importable in {python}; received: {reason[0]}; do {fix}.")


def thread_level(
    python: str = sys.executable, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Returns the most that MPI allows to threads, such as "MPI_THREAD_MULTIPLE"; None if it fails.

    Cost: a process that initialises MPI alone, some 0.2 s.

    Args:
      python: A Python for which `find_library` finds one.
      environ: The environment of the process, without a place among an `mpirun`'s ranks.
    """
    # Alone it needs no memory to share, of which Open MPI would leave a file.
    words = _said([python, "-c", _THREADS], {**environ, "OMPI_MCA_btl": "self"}).split()
    return next((word for word in reversed(words) if word.startswith("MPI_THREAD_")), None)


def check_fit(launcher: Mpiexec, library: Library) -> None:
    """Checks that ranks which the launcher starts can find each other through the library.

    MPICH and Intel MPI have one binary interface and speak one protocol with their launchers; Open
    MPI has others.

    Raises:
      ClusterError: One of the two is Open MPI's and the other is not.

    >>> check_fit(Mpiexec("/usr/bin/mpiexec", "MPICH"), Library("Open MPI", "5.0.11", "4.1.2"))
    Traceback (most recent call last):
        ...
    tfdp.errors.ClusterError: mpi4py must run on the MPI of `mpiexec`; received Open MPI 5.0.11 ...
    """
    if (launcher.vendor == OPEN_MPI) == (library.vendor == OPEN_MPI):
        return
    raise ClusterError(
        f"mpi4py must run on the MPI of `mpiexec`; received {library.vendor} {library.version} and "
        f"{launcher.path} of {launcher.vendor}: each rank would be alone. Put the `mpiexec` of "
        f"{library.vendor} beside Python or first on the PATH, or let mpi4py find "
        f"{launcher.vendor}: `pip install --force-reinstall --no-binary mpi4py mpi4py`, with its "
        "`mpicc` on the PATH."
    )


def _said(words: list[str], environ: Mapping[str, str]) -> str:
    """Returns what a program writes, on standard error if it fails."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout if done.returncode == 0 else done.stderr
