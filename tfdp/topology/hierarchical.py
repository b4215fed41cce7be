"""The all-reduce in two levels: reduce-scatter in hosts, all-reduce between, all-gather in."""

import dataclasses
from collections.abc import Sequence

from tfdp.topology.direct import Direct
from tfdp.topology.native import Native
from tfdp.topology.nesting import nest
from tfdp.topology.ring import Ring
from tfdp.topology.schedule import Schedule, Topology, ranks_of_hosts


@dataclasses.dataclass(frozen=True)
class Hierarchical(Topology):
    """Two levels of topologies: between hosts go the fewest bytes possible.

    1. Each host's ranks run the first part of `inner`, a reduce-scatter. Then each rank has a part
       of its host's sum (with `Tree` two of them have a half each).
    2. For each part, the ranks that have it, one of each host, run `outer`, all parts at the same
       time.
    3. Each host's ranks run the second part of `inner`, an all-gather.

    Hosts of different sizes: each host's sum is cut by its own number of ranks. Where the cuts of
    two hosts differ, step 2 runs on the smaller pieces, so that a rank may talk to several ranks of
    another host. The bytes between hosts stay the same, and no rank has to send for its whole host.
    On one host only `inner` runs; with one rank per host only `outer` does.

    Same bits: each piece is summed at one rank of each host. `outer` then gives the same bits to
    that rank of each host, and the other ranks copy them.

    Cost for S bytes, h hosts of m ranks, with `Direct`, `Ring` or `Torus` as inner and outer:
    between hosts 2(h-1)/h·S per host; each rank sends 2(n-1)/n·S with n = h·m; the steps of inner
    and outer add up, 2 + 2(h-1) by default. `HalvingDoubling` costs the same where its number of
    ranks is a power of two.

    Reference: Jia et al., Highly scalable deep learning training system with mixed-precision,
    arXiv:1807.11205, 2018 (their algorithm reduces to one leader per group; here every rank takes a
    part, as in Mikami et al., arXiv:1811.05233, 2018).

    Args:
      inner: The topology inside hosts. It must reduce each chunk to an owner and then copy it, as
        all topologies here do but `Native`.
      outer: The topology between hosts, on one rank of each: any but `Native`.

    Raises:
      TypeError: `inner` or `outer` is not a `Topology`.
      ValueError: One of them is `Native`. When scheduled: one has an all-reduce of the engine, or
        `inner` does not reduce each chunk to an owner and then copy it.

    >>> schedule = Hierarchical().schedule(4, [0, 1, 0, 1], 1024)
    >>> [sorted((t.source, t.target) for t in phase.transfers) for phase in schedule.phases[:2]]
    [[(0, 2), (1, 3), (2, 0), (3, 1)], [(0, 1), (1, 0), (2, 3), (3, 2)]]
    """

    inner: Topology = dataclasses.field(default_factory=Direct)
    outer: Topology = dataclasses.field(default_factory=Ring)

    def __post_init__(self) -> None:
        for name, value in (("inner", self.inner), ("outer", self.outer)):
            if not isinstance(value, Topology):
                raise TypeError(
                    f"`{name}` must be a `tfdp.topology.Topology`, but received {value!r} of type "
                    f"{type(value).__name__}. Use {name}=tfdp.topology.Ring()."
                )
            if isinstance(value, Native):
                raise ValueError(
                    f"`{name}` must be made of exchanges between ranks, but received {value!r}, "
                    "the engine's own all-reduce, which cannot be taken apart. Use "
                    f"{name}=tfdp.topology.Ring(), which is the same algorithm."
                )

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns `inner` on each host with `outer` in between; see `Topology.schedule`."""
        groups = ranks_of_hosts(world_size, hosts)
        sizes = [len(ranks) for ranks in groups]
        inner = {m: self.inner.schedule(m, [0] * m, size_bytes) for m in sorted(set(sizes))}
        outer = self.outer.schedule(len(groups), range(len(groups)), size_bytes // max(sizes))
        return nest(groups, [inner[m] for m in sizes], outer)
