"""The topology for each size of buffer, chosen from measurements of the links."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from tfdp.topology.model import Links, candidates, nearly_fastest, seconds_of
from tfdp.topology.patterns import pattern_of
from tfdp.topology.schedule import Schedule, Topology

# The sizes for which the model is asked. Each decision holds up to twice its size, halfway (by
# factors) to the next.
_SIZES = tuple(4**power for power in range(4, 16))
_BUCKET_BYTES = tuple(2**power for power in range(20, 28))
# A bucket is large enough if a larger one would move bytes faster by this factor at most.
_WORTH_A_LARGER_BUCKET = 1.1


@dataclasses.dataclass(frozen=True)
class Rule:
    """One decision: the topology for buffers up to a size.

    Attributes:
      up_to_bytes: The largest buffer that the rule holds for; None if there is no largest.
      topology: The topology by which such buffers are summed.

    >>> from tfdp.topology.tree import Tree
    >>> Rule(up_to_bytes=None, topology=Tree())
    Rule(up_to_bytes=None, topology=Tree())
    """

    up_to_bytes: int | None
    topology: Topology


@dataclasses.dataclass(frozen=True)
class Auto(Topology):
    """The topology that is predicted to take the least time, or nearly, buffer by buffer.

    `tfdp.DataParallelStrategy(topology="auto")` measures the links when it starts and decides.

    Args:
      rules: The rules by ascending size, the last without a limit; empty before the decision.
      bucket_bytes: The size from which on larger buckets are hardly faster; None before the
        decision.
      links: The measurements behind the decision; None before they are taken.

    Raises:
      ValueError: The rules do not cover every size once.

    >>> auto = decide(4, [0, 1, 0, 1], Links(1e-4, 1e9, 1e-3, 24e6, 3e-4, 2e-4))
    >>> auto.describe()
    'Native() up to 32 KiB, Tree() up to 512 KiB, Hierarchical(inner=Direct(), outer=Ring()) above'
    >>> auto.topology_for(size_bytes=2**18)
    Tree()
    >>> Auto((Rule(None, auto.topology_for(1024)),)).describe()
    'Native() for all sizes'
    """

    rules: tuple[Rule, ...] = ()
    bucket_bytes: int | None = None
    links: Links | None = None

    def __post_init__(self) -> None:
        limits = [math.inf if r.up_to_bytes is None else r.up_to_bytes for r in self.rules]
        if self.rules and (limits[-1] != math.inf or sorted(set(limits)) != limits):
            raise ValueError(
                "`rules` must ascend, and only the last must be without a limit, but received "
                f"limits of {[rule.up_to_bytes for rule in self.rules]}. Use "
                "up_to_bytes=None for the last, or `tfdp.topology.decide`."
            )

    def topology_for(self, size_bytes: int) -> Topology:
        """Returns the topology that sums a buffer of this size.

        Raises:
          ValueError: Nothing has been decided yet.
        """
        for rule in self.rules:
            if rule.up_to_bytes is None or size_bytes <= rule.up_to_bytes:
                return rule.topology
        raise ValueError(
            "`Auto` must have rules to make a schedule, but received none. Give it to a strategy, "
            "which measures and decides, or use `tfdp.topology.decide(world_size, hosts, links)`."
        )

    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns the schedule of the topology for this size; see `Topology.schedule`."""
        return self.topology_for(size_bytes).schedule(world_size, hosts, size_bytes)

    def describe(self) -> str:
        """Returns the decision in words.

        >>> from tfdp.topology.ring import Ring
        >>> Auto((Rule(2048, Ring()), Rule(None, Ring()))).describe()
        'Ring() up to 2 KiB, Ring() above'
        """
        parts = [
            f"{rule.topology} above"
            if rule.up_to_bytes is None
            else f"{rule.topology} up to {_show(rule.up_to_bytes)}"
            for rule in self.rules
        ]
        if len(parts) == 1:
            parts = [f"{self.rules[0].topology} for all sizes"]
        return ", ".join(parts)


def decide(
    world_size: int,
    hosts: Sequence[int],
    links: Links,
    topologies: Sequence[Topology] | None = None,
) -> Auto:
    """Decides by the cost model; the same numbers give the same decision on every rank.

    Args:
      world_size: The number of ranks.
      hosts: For each rank the index of its host.
      links: The links as measured.
      topologies: The topologies to choose from; None: `candidates`.

    >>> decide(2, [0, 0], Links(1e-4, 1e9, 1e-4, 1e9)).bucket_bytes
    2097152
    """
    largest = _SIZES[-1]
    considered = [
        (topology, pattern_of(topology.schedule(world_size, hosts, largest), hosts, largest))
        for topology in (candidates(hosts) if topologies is None else topologies)
    ]

    def best(size_bytes: int) -> tuple[float, Topology]:
        topology, seconds = nearly_fastest(
            [
                (topology, seconds_of(pattern.scaled(size_bytes / largest), size_bytes, links))
                for topology, pattern in considered
            ]
        )
        return seconds, topology

    rules: list[Rule] = []
    for size in _SIZES:
        _, topology = best(size)
        if rules and rules[-1].topology == topology:
            rules.pop()
        rules.append(Rule(2 * size, topology))
    rules[-1] = Rule(None, rules[-1].topology)
    return Auto(tuple(rules), _bucket_bytes(lambda size: best(size)[0]), links)


def _bucket_bytes(seconds_for: Callable[[int], float]) -> int:
    largest = _SIZES[-1]
    per_byte = seconds_for(largest) / largest
    for size in _BUCKET_BYTES:
        if seconds_for(size) / size <= _WORTH_A_LARGER_BUCKET * per_byte:
            return size
    return _BUCKET_BYTES[-1]


def _show(size_bytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes} B"
