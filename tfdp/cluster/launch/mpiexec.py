"""The start of ranks by the installed MPI: which launcher, with which words.

`mpiexec` starts a supervisor for each rank (:mod:`tfdp.cluster.launch.rank_supervisor`), which
connects its rank to `tfdp run` by named pipes. Through `mpiexec` itself goes nothing but what the
ranks need to find each other. Its own clean-up is off, for it would end the ranks that still live
when one has ended, and hide which of them failed first.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tfdp.cluster.launch.rank_process import supervised
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
