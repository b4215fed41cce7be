"""The all-reduce of the engine itself."""

import dataclasses
from collections.abc import Sequence

from tfdp.topology.schedule import AllReduce, Schedule, Topology, host_order


@dataclasses.dataclass(frozen=True)
class Native(Topology):
    """One all-reduce over all ranks, by the engine's own algorithm.

    TensorFlow's collective runtime runs a ring: each rank sends 2(n-1)/n of the bytes in 2(n-1)
    steps. On GPUs NCCL chooses the algorithm.

    On TensorFlow's engine only this topology cannot follow the hosts: TensorFlow orders a group by
    its devices, so the cluster's order of ranks decides how often the ring crosses between hosts.
    Where ranks of several hosts are listed in turn, every hop crosses. `Ring` is the same algorithm
    and goes host by host. MPI's engine sums within hosts, then between them, in two steps each.

    Same bits: the engine promises them. TensorFlow's ring sums each chunk at one rank and copies
    it.

    >>> Native().schedule(3, [0, 0, 0], 4).phases
    (AllReduce(groups=((0, 1, 2),)),)
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns one all-reduce over all ranks; see `Topology.schedule`."""
        return Schedule((AllReduce((tuple(sorted(host_order(world_size, hosts))),)),))
