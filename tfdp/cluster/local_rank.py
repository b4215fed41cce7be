"""The place of this process among those that one launcher started on this host."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdp.cluster import slurm
from tfdp.cluster.environment_variables import integer
from tfdp.cluster.run_status import STATUS_VARIABLE

_OF_MPI = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def local_rank(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the local rank and how many ranks this host has; None where nobody tells.

    Known are MPI's launchers and Slurm's `srun`. Under `tfdp run`, which has shared out the host
    itself, there is none.

    Raises:
      ClusterError: A variable is malformed.

    >>> local_rank({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    (1, 4)
    >>> local_rank({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_NODEID": "2",
    ...             "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"})
    (1, 3)
    """
    if environ.get(STATUS_VARIABLE):
        return None
    for rank, size in _OF_MPI:
        if environ.get(rank) and environ.get(size):
            return integer(environ, rank), integer(environ, size, at_least=1)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if not (slurm.in_step(environ) and environ.get("SLURM_LOCALID") and tasks):
        return None
    counts: list[int] = []
    for count, nodes in _TASKS.findall(tasks):
        counts += [int(count)] * int(nodes or 1)
    node = integer(environ, "SLURM_NODEID") if environ.get("SLURM_NODEID") else 0
    return (integer(environ, "SLURM_LOCALID"), counts[node]) if node < len(counts) else None
