"""The engine's own all-reduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdp.topology.base import AllReduce, Schedule, Topology
from tfdp.topology.steps import host_order


@dataclasses.dataclass(frozen=True)
class Native(Topology):
    """One all-reduce over all ranks, by whatever algorithm the engine has.

    TensorFlow's collective runtime runs a ring: 2(n-1)/n of the bytes are sent per rank in 2(n-1)
    steps. On GPUs it is NCCL's choice.

    It is the one topology that cannot follow the hosts: TensorFlow orders a group by its devices,
    so its ring crosses between hosts as often as the order in which the cluster lists its ranks
    makes it. Where ranks of several hosts are listed in turn, every hop does; `Ring` is the same
    algorithm and goes host by host.

    That every rank gets the same bits is the engine's promise: TensorFlow's ring sums each chunk at
    one rank and copies it.

    >>> Native().schedule(3, [0, 0, 0], 4).phases
    (AllReduce(groups=((0, 1, 2),)),)
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """See `Topology.schedule`."""
        return Schedule((AllReduce((tuple(sorted(host_order(world_size, hosts))),)),))
