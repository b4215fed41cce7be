"""The tasks that one `srun` of Slurm started."""

from __future__ import annotations

from collections.abc import Mapping

from tfdp.cluster.environment_variables import (
    COORDINATOR,
    chosen_coordinator,
    derived_port,
    integer,
    rank_and_size,
)
from tfdp.cluster.nodelist import expand_nodelist
from tfdp.cluster.spec import Cluster, join_address
from tfdp.errors import ClusterError

RANK = "SLURM_PROCID"
SOURCE = f"Slurm ({RANK})"

_STEP = "SLURM_STEP_ID"
_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_NODELISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

# The steps that no `srun` made have the highest numbers: interactive, batch script, external.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of this process' `srun` step, or None outside a step.

    A batch script, and what it runs without `srun`, is one process whatever `SLURM_NTASKS` is. Rank
    0 is on the first node of the step's list, under the block, cyclic and plane distributions. The
    coordinator's port is derived from the ids of job and step, unless `TFDP_COORDINATOR` gives the
    whole address.

    Raises:
      ClusterError: A variable of the step is missing or malformed, or rank 0's node is unknown.

    >>> print(detect({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3",
    ...               "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]"}))
    rank 3 of 4 (Slurm (SLURM_PROCID))
    """
    if not in_step(environ):
        return None
    rank, size = rank_and_size(environ, RANK, size_variable(environ))
    if size == 1:
        return Cluster.single(SOURCE)
    coordinator = chosen_coordinator(environ, rank) or _coordinator(environ, rank)
    return Cluster(rank, size, coordinator, source=SOURCE)


def rank(environ: Mapping[str, str]) -> int | None:
    """This process' rank in its `srun` step, or None outside a step.

    >>> rank({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3"})
    3
    """
    return integer(environ, RANK) if in_step(environ) else None


def in_step(environ: Mapping[str, str]) -> bool:
    """Returns whether this process is a task of an `srun` step.

    >>> in_step({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})  # the batch script
    False
    """
    step = environ.get(_STEP, "")
    return bool(step) and not (step.isdigit() and int(step) >= _FIRST_SPECIAL_STEP)


def size_variable(environ: Mapping[str, str]) -> str:
    """Returns the name of the variable that holds the step's number of tasks.

    >>> size_variable({"SLURM_NTASKS": "4"})
    'SLURM_NTASKS'
    """
    return next((name for name in _SIZES if environ.get(name)), _SIZES[0])


def _coordinator(environ: Mapping[str, str], rank: int) -> str:
    nodelist = next((name for name in _NODELISTS if environ.get(name)), None)
    if nodelist is None:
        raise ClusterError(
            f"Rank {rank}: one of {', '.join(f'`{name}`' for name in _NODELISTS)} must be set in a "
            f"Slurm step, but none is. Pass Slurm's environment on, or set "
            f"`{COORDINATOR}=host:port` to rank 0's address."
        )
    distribution = environ.get("SLURM_DISTRIBUTION", "")
    node_of_rank_0 = environ.get("SLURM_NODEID", "0") if rank == 0 else "0"
    if "arbitrary" in distribution or node_of_rank_0 != "0":
        raise ClusterError(
            f"Rank {rank}: rank 0 must be on the first node of `{nodelist}`="
            f"{environ[nodelist]!r}, but `SLURM_DISTRIBUTION` is {distribution!r} and "
            f"`SLURM_NODEID` {environ.get('SLURM_NODEID')!r}. Use `srun --distribution=block`, or "
            f"set `{COORDINATOR}=host:port` to rank 0's address."
        )
    try:
        host = expand_nodelist(environ[nodelist])[0]
    except ClusterError as error:
        raise ClusterError(f"Rank {rank}: `{nodelist}`: {error}") from error
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")
    return join_address(host, derived_port("slurm", job, environ[_STEP]))
