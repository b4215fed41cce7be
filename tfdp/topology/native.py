"""The engine's own all-reduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdp.topology.base import AllReduce, Schedule, Topology


@dataclasses.dataclass(frozen=True)
class Native(Topology):
    """One all-reduce over all ranks, by whatever algorithm the engine has.

    TensorFlow's collective runtime runs a ring: 2(n-1)/n of the bytes are sent per rank in 2(n-1)
    steps. On GPUs it is NCCL's choice.

    >>> Native().schedule(3, [0, 0, 0], 4).phases
    (AllReduce(groups=((0, 1, 2),)),)
    """

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """See `Topology.schedule`."""
        return Schedule((AllReduce((tuple(range(world_size)),)),))
