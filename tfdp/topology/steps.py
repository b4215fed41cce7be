"""The parts of schedules: ranks by hosts, steps side by side, and slices of a buffer."""

import itertools
from collections.abc import Iterable, Sequence

from tfdp.topology.schedule import Exchange, Transfer

# A list of steps, run one after the other; the transfers of one step happen at the same time.
Steps = list[list[Transfer]]
MOST_SLICES = 4
_LEAST_SLICE_BYTES = 2**20


def ranks_of_hosts(world_size: int, hosts: Sequence[int]) -> list[list[int]]:
    """Returns the ranks of each host, ascending, in the order of the hosts' indices.

    Neighbours in this order share a host, whatever order the ranks were listed in.

    Raises:
      ValueError: There is no rank, or `hosts` does not have one entry per rank.

    >>> ranks_of_hosts(5, [0, 1, 0, 1, 1])
    [[0, 2], [1, 3, 4]]
    """
    if world_size < 1 or len(hosts) != world_size:
        raise ValueError(
            "`hosts` must name the host of each of at least 1 rank, but received "
            f"world_size={world_size} and {len(hosts)} hosts: {list(hosts)}. "
            "Use hosts=[0] * world_size where all ranks share a host."
        )
    ordered = sorted(range(world_size), key=lambda rank: (hosts[rank], rank))
    return [list(ranks) for _, ranks in itertools.groupby(ordered, key=lambda rank: hosts[rank])]


def host_order(world_size: int, hosts: Sequence[int]) -> list[int]:
    """Returns all ranks, host by host.

    >>> host_order(4, [0, 1, 0, 1])
    [0, 2, 1, 3]
    """
    return [rank for ranks in ranks_of_hosts(world_size, hosts) for rank in ranks]


def side_by_side(programs: Iterable[Steps]) -> Steps:
    """Joins programs that run at the same time: the first steps of all, then the second, and so on.

    >>> a, b, c = (Transfer(0, 1, range(k, k + 1), True) for k in range(3))
    >>> side_by_side([[[a], [b]], [[c]]]) == [[a, c], [b]]
    True
    """
    return [
        [transfer for step in steps for transfer in step]
        for steps in itertools.zip_longest(*programs, fillvalue=[])
    ]


def as_phases(steps: Steps) -> tuple[Exchange, ...]:
    """Returns a phase for each step that has transfers.

    >>> as_phases([[]])
    ()
    """
    return tuple(Exchange(tuple(step)) for step in steps if step)


def slice_count(size_bytes: float, most: int = MOST_SLICES) -> int:
    """Returns the number of slices of a buffer: while one is added up, another is on its way.

    >>> slice_count(4000), slice_count(2 * 2**20), slice_count(2**30)
    (1, 2, 4)
    """
    return max(1, min(most, int(size_bytes // _LEAST_SLICE_BYTES)))
