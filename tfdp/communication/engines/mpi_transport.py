"""MPI as a transport of bytes, by mpi4py: any MPI whose launcher started the processes.

Only sends and receives are MPI's; the collectives are those of `tfdp.communication.engines.host`.
They are polled for, so that a lost rank or a deadline ends a wait, and they need one communicator,
so that a trace on one rank alone changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdp.cluster import mpi as mpi_launcher
from tfdp.errors import CollectiveMismatchError

INSTALL = "Install mpi4py for the launcher's MPI on every host: `pip install 'tfdp[mpi]'`"


class MpiTransport:
    """Sends and receives between the processes of a communicator.

    Args:
      mpi: The module `mpi4py.MPI`.
      communicator: An `mpi4py.MPI.Comm`, which nothing else uses.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._communicator = mpi, communicator
        self.tags: int = communicator.Get_attr(mpi.TAG_UB) + 1

    def send(self, array: np.ndarray, target: int, tag: int) -> Sending:
        """Begins to send the bytes of `array`."""
        return Sending(self._communicator.Isend(_bytes(array), target, tag))

    def receive(self, array: np.ndarray, source: int, tag: int) -> Receiving:
        """Begins to receive the bytes of `array`."""
        data = _bytes(array)
        request = self._communicator.Irecv(data, source, tag)
        return Receiving(self._mpi, request, data.nbytes, source)

    def has_arrived(self, source: int, tag: int) -> bool:
        """Probes for a message, see `tfdp.communication.engines.host.ByteTransport`."""
        found: bool = self._communicator.Iprobe(source, tag)
        return found


class Sending:
    """A send of MPI."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def done(self) -> bool:
        """Polls the request, see `tfdp.communication.engines.host.Request`."""
        done: bool = self._request.Test()
        return done


class Receiving:
    """A receive of MPI, and the number of bytes that must come."""

    def __init__(self, mpi: Any, request: Any, size_bytes: int, source: int) -> None:
        self._mpi, self._request = mpi, request
        self._size_bytes, self._source = size_bytes, source
        self._status = mpi.Status()
        self._done = False

    def done(self) -> bool:
        """Polls the request, see `tfdp.communication.engines.host.Request`."""
        if self._done:
            return True
        try:
            self._done = self._request.Test(self._status)
        except self._mpi.Exception as error:
            if error.Get_error_class() == self._mpi.ERR_TRUNCATE:
                raise self._differs("more") from error
            raise
        if self._done:
            received = self._status.Get_count(self._mpi.BYTE)
            if received != self._size_bytes:
                raise self._differs(str(received))
        return self._done

    def _differs(self, received: str) -> CollectiveMismatchError:
        return CollectiveMismatchError(
            "Every rank must call a collective with a tensor of the same shape and dtype, but rank "
            f"{self._source} sent {received} bytes where {self._size_bytes} were to come. Reduce "
            "or pad the tensors first, or join their rows with `all_gather`."
        )


def why_not(launcher: mpi_launcher.MPILauncher, world_size: int) -> str | None:
    """Returns why the processes cannot use MPI for collectives; None if they can.

    Args:
      launcher: The launcher that started the processes.
      world_size: The number of processes in the cluster.
    """
    if launcher.size not in (None, world_size):
        return (
            f"{launcher.variable} tells of {launcher.size} processes, but the cluster has "
            f"{world_size}. Start all ranks with one `mpiexec`"
        )
    mpi, reason = mpi_launcher.connect(launcher.open_mpi)
    if mpi is None:
        return f"{reason}. {INSTALL}"
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        return (
            "MPI was initialised without MPI_THREAD_MULTIPLE, which collectives from several "
            "threads need. Let tfdp initialise MPI, or set `mpi4py.rc.thread_level = 'multiple'` "
            "before it is"
        )
    if mpi.COMM_WORLD.Get_size() != world_size:
        return (
            f"MPI has {mpi.COMM_WORLD.Get_size()} processes, but the cluster has {world_size}. "
            "Start all ranks with one `mpiexec`"
        )
    return None


def transport(launcher: mpi_launcher.MPILauncher, rank: int) -> MpiTransport:
    """Makes the transport between all processes, once `why_not` has found no reason on any rank.

    All processes must call it, and wait in it for each other.

    Args:
      launcher: The launcher that started the processes.
      rank: The rank of this process in the cluster, by which the others address it.
    """
    mpi, _ = mpi_launcher.connect(launcher.open_mpi)
    return MpiTransport(mpi, mpi.COMM_WORLD.Split(0, rank))


def _bytes(array: np.ndarray) -> np.ndarray:
    return (array if array.ndim else array.reshape(1)).view(np.uint8)
