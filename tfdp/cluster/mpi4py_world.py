"""MPI as mpi4py has it, where mpi4py is installed: initialised once, finalised at the end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import pathlib
import re
import socket
import sys
from typing import Any

from tfdp.cluster.spec import join_address

_to_finalize: list[Any] = []
_MAPS = pathlib.Path("/proc/self/maps")
_SHARED = re.compile(r" (/dev/shm/mpich_shm_\w+)$", re.MULTILINE)


@functools.cache
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
