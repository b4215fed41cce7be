"""MPI as mpi4py has it, where mpi4py is installed: initialised once, finalised at the end."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import socket
import sys
from typing import Any

from tfdp.cluster import mpich_memory
from tfdp.cluster.spec import join_address

_to_finalize: list[Any] = []


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
    mpich_memory.remove_names()
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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
