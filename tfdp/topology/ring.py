"""The ring all-reduce: reduce-scatter, then all-gather around a ring."""

import dataclasses
from collections.abc import Sequence

from tfdp.topology.schedule import Schedule, Steps, Topology, Transfer, as_phases, host_order


@dataclasses.dataclass(frozen=True)
class Ring(Topology):
    """A ring, in which each rank talks to two neighbours: the fewest bytes, the most steps.

    The buffer is cut into n chunks, one per rank.

    1. Reduce-scatter, n-1 steps: each rank sends one chunk to the next rank, which adds it to its
       own and sends the sum on. In the end each rank has one chunk of the sum.
    2. All-gather, n-1 steps: each rank sends on the chunk of the sum that it received last.

    The ring goes host by host, so each host sends to one other host and receives from one.

    Same bits: each chunk is summed along one way around the ring, is complete at one rank, and is
    copied from there.

    Cost for S bytes and n ranks: each rank sends 2(n-1)/n·S, in 2(n-1) steps, one transfer at a
    time in each direction. Each of h > 1 hosts sends 2(n-1)/n·S to another, near 2S however many
    ranks it has.

    Reference: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, Journal of Parallel and Distributed Computing 69(2), 2009.

    >>> schedule = Ring().schedule(4, [0, 1, 0, 1], 1024)
    >>> len(schedule.phases), schedule.chunks
    (6, 4)
    >>> [(t.source, t.target) for t in schedule.phases[0].transfers]
    [(0, 2), (2, 1), (1, 3), (3, 0)]
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns the 2(n-1) steps of the ring; see `Topology.schedule`."""
        ring = host_order(world_size, hosts)
        return Schedule(as_phases(_reduce_scatter(ring) + _all_gather(ring)), chunks=world_size)


def _reduce_scatter(ring: list[int]) -> Steps:
    """Returns the steps after which the rank at position i has chunk i of the sum."""
    return [_pass_on(ring, step + 1, reduce=True) for step in range(len(ring) - 1)]


def _all_gather(ring: list[int]) -> Steps:
    """Returns the steps before which the rank at position i has chunk i."""
    return [_pass_on(ring, step, reduce=False) for step in range(len(ring) - 1)]


def _pass_on(ring: list[int], behind: int, reduce: bool) -> list[Transfer]:
    """Returns the step in which each rank gives the next one the chunk of the rank `behind` it."""
    transfers = []
    for position, rank in enumerate(ring):
        chunk = (position - behind) % len(ring)
        target = ring[(position + 1) % len(ring)]
        transfers.append(Transfer(rank, target, range(chunk, chunk + 1), reduce))
    return transfers
