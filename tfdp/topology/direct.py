"""The direct all-reduce: all-to-all, sum, all-gather, in two steps."""

import dataclasses
from collections.abc import Sequence

from tfdp.topology.schedule import Schedule, Steps, Topology, Transfer, as_phases, host_order


@dataclasses.dataclass(frozen=True)
class Direct(Topology):
    """A topology where each rank sums one chunk for all: the fewest bytes and steps, many messages.

    The buffer is cut into n chunks, one per rank.

    1. All-to-all: each rank sends each other rank the chunk that the other is to sum. The owner of
       a chunk adds the arrivals to its own values in the order of ranks.
    2. All-gather: each rank sends its chunk of the sum to every other rank.

    Every rank talks to every other, so the order of hosts does not matter to the cost. Chunks
    belong to the ranks host by host, as in the other topologies.

    Same bits: each chunk is summed at its owner, in one order, and copied from there.

    Cost for S bytes and n ranks: each rank sends 2(n-1)/n·S, in 2 steps of n-1 transfers out and
    n-1 in. Of h hosts of m ranks each host sends m·2(h-1)/h·S to others, m times what
    `Hierarchical` sends.

    Reference: the all-to-all reduce-scatter of Thakur, Rabenseifner and Gropp, Optimization of
    collective communication operations in MPICH, International Journal of High Performance
    Computing Applications 19(1), 2005 (their "pairwise exchange", all of it in one step).

    >>> schedule = Direct().schedule(4, [0, 0, 0, 0], 1024)
    >>> len(schedule.phases), schedule.chunks
    (2, 4)
    >>> [(t.source, t.chunks) for t in schedule.phases[0].received_by(2)]
    [(0, range(2, 3)), (1, range(2, 3)), (3, range(2, 3))]
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns two phases: all-to-all, then all-gather; see `Topology.schedule`."""
        owners = host_order(world_size, hosts)
        steps: Steps = [[], []]
        for chunk, owner in enumerate(owners):
            piece = range(chunk, chunk + 1)
            for rank in owners:
                if rank != owner:
                    steps[0].append(Transfer(rank, owner, piece, reduce=True))
                    steps[1].append(Transfer(owner, rank, piece, reduce=False))
        return Schedule(as_phases(steps), chunks=world_size)
