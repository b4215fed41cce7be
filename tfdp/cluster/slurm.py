"""The tasks that one `srun` of Slurm started."""

import itertools
import re
from collections.abc import Iterator, Mapping

from tfdp.cluster.environment_variables import (
    COORDINATOR,
    chosen_coordinator,
    derived_port,
    integer,
    rank_and_size,
)
from tfdp.cluster.spec import Cluster, join_address
from tfdp.errors import ClusterError

RANK = "SLURM_PROCID"
SOURCE = f"Slurm ({RANK})"

_STEP = "SLURM_STEP_ID"
_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_NODELISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

# The steps that no `srun` made have the highest numbers: interactive, batch script, external.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

_MAX_NODES = 65536  # Slurm's own limit: a longer list is a mistake that would fill the memory

# A part is plain characters or one bracket of ranges; an entry is one part or more.
_PART = re.compile(
    r"\[([^\[\],-]+(?:-[^\[\],-]+)?(?:,[^\[\],-]+(?:-[^\[\],-]+)?)*)\]|([^\[\],\s]+)"
)

_ENTRY = re.compile(rf"(?:{_PART.pattern})+")


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


def expand_nodelist(nodelist: str) -> tuple[str, ...]:
    """Returns the nodes of a list as Slurm compresses it, in the list's order.

    Numbers keep their leading zeros. Where a name has several brackets, the last varies fastest.

    Args:
      nodelist: Names, parts of which are brackets of numbers and ranges.

    Raises:
      ClusterError: The list is empty or malformed.

    >>> expand_nodelist("node[01-03,7],gpu-a[1-2]b,login")
    ('node01', 'node02', 'node03', 'node7', 'gpu-a1b', 'gpu-a2b', 'login')
    >>> expand_nodelist("rack[1-2]n[8-9]")
    ('rack1n8', 'rack1n9', 'rack2n8', 'rack2n9')
    """
    nodes: list[str] = []
    for entry in _entries(nodelist):
        choices = [
            list(_numbers(match[1], nodelist)) if match[1] else [match[2]]
            for match in _PART.finditer(entry)
        ]
        names = map("".join, itertools.product(*choices))
        nodes.extend(itertools.islice(names, _MAX_NODES + 1 - len(nodes)))
        if len(nodes) > _MAX_NODES:
            raise _not_a_list(nodelist, f"it has more than {_MAX_NODES} nodes")
    return tuple(nodes)


def _entries(nodelist: str) -> Iterator[str]:
    """Yields the entries, which end at the commas outside brackets."""
    position = 0
    while True:
        match = _ENTRY.match(nodelist, position)
        if match is None:
            raise _not_a_list(nodelist, f"no name at character {position}")
        yield match[0]
        position = match.end()
        if position == len(nodelist):
            return
        if nodelist[position] != ",":
            raise _not_a_list(nodelist, f"{nodelist[position]!r} at character {position}")
        position += 1


def _numbers(ranges: str, nodelist: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not all(text.isascii() and text.isdigit() for text in (first, last)):
            raise _not_a_list(nodelist, f"{part!r} is neither a number nor a range")
        if int(first) > int(last):
            raise _not_a_list(nodelist, f"the range {part!r} runs backwards")
        if int(last) - int(first) >= _MAX_NODES:
            raise _not_a_list(nodelist, f"the range {part!r} has more than {_MAX_NODES} nodes")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _not_a_list(nodelist: str, reason: str) -> ClusterError:
    return ClusterError(
        "A Slurm node list must be names and bracketed ranges such as 'node[01-03,7],login', "
        f"but is {nodelist!r}: {reason}. Leave it as Slurm sets it, or set "
        "`TFDP_COORDINATOR=host:port` to rank 0's address."
    )
