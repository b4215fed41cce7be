"""The ranks that one `mpirun`, `mpiexec` or `srun --mpi=...` started, and MPI as mpi4py has it."""

import atexit
import contextlib
import dataclasses
import functools
import importlib
import os
import pathlib
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from tfdp.cluster import slurm
from tfdp.cluster.environment_variables import (
    COORDINATOR,
    chosen_coordinator,
    derived_port,
    integer,
    rank_and_size,
)
from tfdp.cluster.spec import Cluster, join_address
from tfdp.errors import ClusterError


@dataclasses.dataclass(frozen=True)
class _Variables:
    """The names of the variables of one kind of launcher. Some launchers do not tell the size."""

    rank: str
    size: str | None
    local_sizes: tuple[str, ...]
    open_mpi: bool | None  # whether the launcher is Open MPI's, where that is known


# Open MPI sets PMIX_RANK too, so it comes first.
_KINDS = (
    _Variables(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_SIZE",), True
    ),
    _Variables("PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"), False),
    _Variables("PMIX_RANK", None, (), None),
)
_OF_A_PLACE = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

# `mpirun` sets one of these, `srun` neither. Inside a Slurm job `mpirun` starts its daemons by
# `srun`, and the ranks inherit the variables of that other step.
_SET_BY_MPIRUN = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALNRANKS")
_INSTALL_MPI4PY = "Install mpi4py for the launcher's MPI on every host (`pip install 'tfdp[mpi]'`)"

# MPI, if this process has initialised it, until it is finalised: once in the life of a process.
_to_finalize: list[Any] = []
_MAPS = pathlib.Path("/proc/self/maps")
_SHARED = re.compile(r" (/dev/shm/mpich_shm_\w+)$", re.MULTILINE)


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that MPI's launcher started; None if this process is not in it.

    Known are Open MPI (`OMPI_COMM_WORLD_*`), MPICH and Intel MPI (`PMI_*`), and PMIx (`PMIX_RANK`).
    None of them lists addresses. The coordinator's address is the first that is available:

    1. `TFDP_COORDINATOR`.
    2. If `srun` started the ranks: the first node of Slurm's list.
    3. If mpi4py is installed: rank 0 broadcasts its host and a free port. MPI is initialised
       for that, once, and every rank must call this function.
    4. If all ranks are on this host: 127.0.0.1 and a port derived from the launcher's id.

    Raises:
      ClusterError: A variable is missing or malformed, or no step of the list gives an address.

    >>> print(detect({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    ...               "TFDP_COORDINATOR": "node-1:23456"}))
    rank 1 of 2 (MPI (OMPI_COMM_WORLD_RANK))
    """
    names = _variables(environ)
    if names is None:
        return None
    source = f"MPI ({names.rank})"
    rank, size = _rank_and_size(environ, names)
    if size == 1:
        return Cluster.single(source)
    coordinator = chosen_coordinator(environ, rank) or _coordinator(environ, names, rank, size)
    return Cluster(rank, size, coordinator, source=source)


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without what MPI's launcher tells a process of its place.

    A program that was started by `mpirun` needs it for the ranks that it starts itself.

    >>> without_rank({"PMI_RANK": "1", "PMI_SIZE": "2", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OF_A_PLACE) or name.startswith("PMIX_MCA_")  # a user's settings
    }


def rank(environ: Mapping[str, str]) -> int | None:
    """This process' rank among those that MPI's launcher started, or None if it is none of them.

    >>> rank({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    1
    """
    names = _variables(environ)
    return None if names is None else integer(environ, names.rank)


@dataclasses.dataclass(frozen=True)
class MPILauncher:
    """The launcher of MPI that started this process.

    Attributes:
      variable: The name of the environment variable that tells.
      open_mpi: Whether it is Open MPI's; None if that is not known.
      size: The number of processes that it started; None if it does not tell.
    """

    variable: str
    open_mpi: bool | None
    size: int | None


def launcher(environ: Mapping[str, str]) -> MPILauncher | None:
    """Returns the launcher of MPI that started this process; None if none did.

    >>> launcher({"PMI_RANK": "0", "PMI_SIZE": "2"})
    MPILauncher(variable='PMI_RANK', open_mpi=False, size=2)
    """
    names = _variables(environ)
    if names is None:
        return None
    size = integer(environ, names.size) if names.size and environ.get(names.size) else None
    return MPILauncher(names.rank, names.open_mpi, size)


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


def _variables(environ: Mapping[str, str]) -> _Variables | None:
    return next((kind for kind in _KINDS if environ.get(kind.rank)), None)


def _rank_and_size(environ: Mapping[str, str], names: _Variables) -> tuple[int, int]:
    if names.size is not None:
        return rank_and_size(environ, names.rank, names.size)
    if environ.get("OMPI_COMM_WORLD_SIZE"):
        return rank_and_size(environ, names.rank, "OMPI_COMM_WORLD_SIZE")
    if slurm.in_step(environ):
        return rank_and_size(environ, names.rank, slurm.size_variable(environ))
    rank = integer(environ, names.rank)
    world, why_not = _world(names)
    if world is None or world[0] != rank:
        raise ClusterError(
            f"Rank {rank}: the number of ranks must be known, but `{names.rank}`={rank} comes "
            f"without one (no `OMPI_COMM_WORLD_SIZE`, no Slurm step), and {why_not}. "
            f"{_INSTALL_MPI4PY}, or start with `mpirun`."
        )
    return world


def _coordinator(environ: Mapping[str, str], names: _Variables, rank: int, size: int) -> str:
    if slurm.in_step(environ) and not any(environ.get(name) for name in _SET_BY_MPIRUN):
        return _slurm_coordinator(environ, names, rank, size)
    local_size = _local_size(environ, names)
    all_local = local_size == size
    world, why_not = _world(names)
    if world == (rank, size):
        return broadcast_address(names.open_mpi, all_local)
    if all_local:
        job = environ.get("PMIX_NAMESPACE") or launcher_pid(names.rank)
        return join_address("127.0.0.1", derived_port("mpi", job))
    here = "" if local_size is None else f", only {local_size} of them are on this host"
    raise ClusterError(
        f"Rank {rank}: all {size} ranks must know rank 0's address, but `{names.rank}` comes "
        f"without one{here}, and {why_not}. Set `{COORDINATOR}=host:port` on all "
        "ranks, to rank 0's host and a free port there (Open MPI: "
        f"`mpirun -x {COORDINATOR}=host:port ...`). {_INSTALL_MPI4PY} and it is found without."
    )


def _slurm_coordinator(environ: Mapping[str, str], names: _Variables, rank: int, size: int) -> str:
    step = slurm.detect(environ)
    if step is None or step.coordinator is None or (step.rank, step.world_size) != (rank, size):
        raise ClusterError(
            f"Rank {rank}: `{names.rank}` and Slurm's step must agree, but MPI has rank {rank} of "
            f"{size} and Slurm {step}. Start all ranks with one `srun`, or set "
            f"`{COORDINATOR}=host:port` to rank 0's address."
        )
    return step.coordinator


def _local_size(environ: Mapping[str, str], names: _Variables) -> int | None:
    known = next((name for name in names.local_sizes if environ.get(name)), None)
    return None if known is None else integer(environ, known, at_least=1)


def _world(names: _Variables) -> tuple[tuple[int, int] | None, str]:
    """Returns the rank and size that mpi4py has, and what to say if the launcher's differ."""
    mpi, why_not = connect(names.open_mpi)
    if mpi is None:
        return None, why_not
    rank, size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    return (rank, size), f"mpi4py says rank {rank} of {size}"


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


def connect(open_mpi: bool | None) -> tuple[Any, str]:
    """Returns the module `mpi4py.MPI`, initialised, or None and the reason why there is none.

    The vendor of mpi4py's MPI is asked first, because another MPI than the launcher's would abort
    every rank when it is initialised, or make a world of one rank.

    MPI is finalised at the end of the process. It is not if the program imported `mpi4py.MPI`
    before, whose business that is then, or if `MPI4PY_RC_FINALIZE` is 0: `tfdp run` sees to it that
    ranks may end without, each when it wants to.

    Args:
      open_mpi: Whether the launcher is Open MPI's; None if that is not known.
    """
    ours = "mpi4py.MPI" not in sys.modules
    try:
        if ours:
            rc = importlib.import_module("mpi4py").rc
            rc.initialize, rc.finalize = False, False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: no MPI library
        return None, f"mpi4py cannot be imported ({error})"
    vendor = mpi.get_vendor()[0]
    if open_mpi is not None and (vendor == "Open MPI") != open_mpi:
        return None, f"mpi4py runs on {vendor}, which is not the launcher's MPI"
    if not mpi.Is_initialized():
        mpi.Init_thread()
    remove_mpich_names()
    if ours and os.environ.get("MPI4PY_RC_FINALIZE") != "0":
        _to_finalize.append(mpi)
        atexit.register(finalize)
    return mpi, ""


def ends_together() -> bool:
    """Returns whether MPI is finalised at the end, where this process waits for all others."""
    return bool(_to_finalize)


def finalize() -> None:
    """Finalises MPI, if it was initialised here. The process does it at its end, unless it has."""
    while _to_finalize:
        mpi = _to_finalize.pop()
        if not mpi.Is_finalized():
            mpi.Finalize()


def leave_to_caller(abandon: bool = False) -> None:
    """Leaves it to the caller to call `finalize`, at a time that suits it.

    Args:
      abandon: Whether MPI stays as it is: to finalise it would wait for lost ranks for ever.
    """
    atexit.unregister(finalize)
    if abandon:
        _to_finalize.clear()


@functools.cache
def broadcast_address(open_mpi: bool | None, all_local: bool) -> str:
    """Returns rank 0's host and a port that is free there, on every rank. A collective, run once.

    Args:
      open_mpi: As for `connect`, which must have returned the module.
      all_local: Whether all ranks are on one host. The host is then 127.0.0.1, which needs no name
        service.
    """
    world = connect(open_mpi)[0].COMM_WORLD
    address = None
    if world.Get_rank() == 0:
        host = "127.0.0.1" if all_local else socket.gethostname()
        address = join_address(host, _free_port())
    return world.bcast(address, root=0)


def remove_mpich_names(maps: pathlib.Path = _MAPS) -> None:
    """Removes the names of MPICH's shared memory that this process has mapped.

    MPICH keeps a name, and with it 1 MB for each rank, until MPI is finalised, which a rank that
    fails never does. Once MPI is initialised every rank of the host has the memory, and nobody
    asks for it by its name; the kernel frees memory without a name when its last process ends.

    Args:
      maps: The file with the process' mappings, as Linux has it.
    """
    with contextlib.suppress(OSError):  # no such file outside Linux, or another rank was faster
        for name in sorted(set(_SHARED.findall(maps.read_text()))):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
