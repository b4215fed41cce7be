"""The choice of the engine that moves tensors between processes."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from tfdp.cluster import mpi as mpi_launcher
from tfdp.communication.engines import mpi_transport
from tfdp.errors import ClusterError

NAMES = ("auto", "tensorflow", "mpi")

_START = (
    "Start all ranks with MPI's launcher (`mpiexec -n 2 python train.py`, or `tfdp run -n 2 "
    "--engine mpi train.py`), or leave `engine` out"
)


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """The engine of a strategy.

    Attributes:
      name: "tensorflow" or "mpi".
      launcher: The launcher of MPI; None for TensorFlow's engine.
    """

    name: str
    launcher: mpi_launcher.MPILauncher | None = None


def check_name(name: object) -> None:
    """Raises ValueError unless `name` is one of an engine, or "auto"."""
    if name not in NAMES:
        raise ValueError(
            f"`engine` must be one of {', '.join(map(repr, NAMES))}, but received {name!r}. Leave "
            "it out: MPI is used where its launcher started the processes."
        )


def choose(
    option: str,
    rank: int,
    world_size: int,
    devices: Sequence[str],
    environ: Mapping[str, str],
) -> EngineChoice:
    """Returns the engine for this process; all processes must come to the same.

    "auto" means MPI where its launcher started the processes, mpi4py can be used with it, and the
    devices are CPUs; otherwise TensorFlow's engine. The reason is logged where only mpi4py is
    missing.

    Args:
      option: "auto", "tensorflow" or "mpi".
      rank: The rank of this process.
      world_size: The number of processes.
      devices: The full names of the devices of this process' replicas.
      environ: Environment variables, where MPI's launcher has left its own.

    Raises:
      ClusterError: MPI is asked for and cannot be used; the error says why.

    >>> choose("auto", 0, 2, ["/device:CPU:0"], environ={})
    EngineChoice(name='tensorflow', launcher=None)
    """
    if option == "tensorflow":
        return EngineChoice("tensorflow")
    reason: str | None
    launcher = mpi_launcher.launcher(environ)
    kinds = sorted({device.rsplit("/", 1)[-1].split(":")[-2] for device in devices} - {"CPU"})
    if world_size == 1:
        reason = f"the process is alone. {_START}"
    elif launcher is None:
        reason = f"no launcher of MPI started this process. {_START}"
    elif kinds:
        reason = (
            f"the devices are {', '.join(kinds)}s, and MPI moves host memory alone. Leave `engine` "
            "out: TensorFlow's engine uses NCCL"
        )
    else:
        reason = mpi_transport.why_not(launcher, world_size)
        if reason is None:
            return EngineChoice("mpi", launcher)
        if option == "auto" and rank == 0:
            logging.getLogger("tfdp").warning(
                "The processes were started by MPI's launcher, but TensorFlow's own engine moves "
                "their tensors, several times slower on CPUs: %s.",
                reason,
            )
    if option == "mpi":
        raise ClusterError(f'Rank {rank}: engine="mpi" needs MPI between the ranks, but {reason}.')
    return EngineChoice("tensorflow")
