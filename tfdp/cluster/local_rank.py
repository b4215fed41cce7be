"""The place of this process among those that one launcher started on this host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tfdp.base import gpus
from tfdp.cluster import slurm
from tfdp.cluster.environment_variables import integer
from tfdp.cluster.run_status import STATUS_VARIABLE

T = TypeVar("T")

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


def own_gpus(present: Sequence[T], environ: Mapping[str, str]) -> list[T] | None:
    """Returns this process' share of the GPUs that all ranks of its host see; None: all are its.

    MPI and Slurm's `srun` start several ranks on a host. Whoever has chosen the GPUs of a rank by
    `CUDA_VISIBLE_DEVICES`, a scheduler or a user, is followed, unless that has all GPUs of Slurm's
    step.

    Args:
      present: The GPUs that CUDA shows to the process.
      environ: The environment of the process.

    >>> two = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    >>> own_gpus([0, 1, 2, 3], two), own_gpus([0], two)
    ([2, 3], None)
    >>> own_gpus([0, 1], {**two, "CUDA_VISIBLE_DEVICES": "4,5"})
    """
    place = local_rank(environ)
    if place is None or not 1 < place[1] <= len(present):
        return None
    of_step = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    all_of_step = of_step is not None and len(of_step.split(",")) == len(present)
    if gpus.VISIBLE in environ and not all_of_step:
        return None
    return gpus.share(present, *place)
