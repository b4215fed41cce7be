"""The cost of a schedule, counted from its transfers."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from tfdp.topology.ring import Ring
from tfdp.topology.schedule import AllReduce, Schedule


@dataclasses.dataclass(frozen=True)
class Move:
    """The bytes that one rank sends to another in one step.

    Attributes:
      source: The rank that sends.
      target: The rank that receives.
      size_bytes: The number of bytes.
    """

    source: int
    target: int
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """The bytes that a schedule sends, and the number of its steps.

    Attributes:
      steps: How many times a rank waits for others.
      operations: The sends and receives that the busiest rank of each phase starts, summed over all
        phases; an all-reduce of the engine counts as one.
      bytes_sent: The bytes that each rank sends.
      bytes_received: The bytes that each rank receives.
      bytes_sent_between_hosts: The bytes that each host in `hosts` sends to other hosts.
      bytes_received_between_hosts: The bytes that each host in `hosts` receives from other hosts.

    >>> hosts = [0, 0, 1]
    >>> ring = cost(Ring().schedule(3, hosts, 900), hosts, 900)
    >>> isinstance(ring, Cost), ring.max_bytes_sent_per_rank, ring.max_bytes_between_hosts
    (True, 1200, 1200)
    """

    steps: int
    operations: int
    bytes_sent: tuple[int, ...]
    bytes_received: tuple[int, ...]
    bytes_sent_between_hosts: dict[int, int]
    bytes_received_between_hosts: dict[int, int]

    @property
    def max_bytes_sent_per_rank(self) -> int:
        """The bytes that the busiest rank sends."""
        return max(self.bytes_sent)

    @property
    def max_bytes_between_hosts(self) -> int:
        """The bytes that the busiest host sends to or receives from other hosts."""
        return max(
            *self.bytes_sent_between_hosts.values(), *self.bytes_received_between_hosts.values()
        )


def cost(schedule: Schedule, hosts: Sequence[int], size_bytes: int) -> Cost:
    """Counts the transfers of a schedule.

    The engine's own all-reduce counts as TensorFlow's: a ring in the order of ranks.

    Args:
      schedule: A schedule of any topology.
      hosts: For each rank the index of its host.
      size_bytes: The size of the buffer.

    >>> from tfdp.topology.hierarchical import Hierarchical
    >>> hosts = [0, 0, 1, 1]
    >>> it = cost(Hierarchical().schedule(4, hosts, 1024), hosts, 1024)
    >>> it.steps, it.max_bytes_sent_per_rank, it.bytes_sent_between_hosts
    (4, 1536, {0: 1024, 1: 1024})
    """
    sent, received, out, into = Counter[int](), Counter[int](), Counter[int](), Counter[int]()
    count = 0
    for moves in steps(schedule, size_bytes):
        count += 1
        for move in moves:
            sent[move.source] += move.size_bytes
            received[move.target] += move.size_bytes
            if hosts[move.source] != hosts[move.target]:
                out[hosts[move.source]] += move.size_bytes
                into[hosts[move.target]] += move.size_bytes
    ranks = range(len(hosts))
    return Cost(
        steps=count,
        operations=operations(schedule),
        bytes_sent=tuple(sent[rank] for rank in ranks),
        bytes_received=tuple(received[rank] for rank in ranks),
        bytes_sent_between_hosts={host: out[host] for host in sorted(set(hosts))},
        bytes_received_between_hosts={host: into[host] for host in sorted(set(hosts))},
    )


def steps(schedule: Schedule, size_bytes: int) -> Iterator[list[Move]]:
    """Yields the moves of each step; those of one step happen at the same time.

    >>> from tfdp.topology.native import Native
    >>> [len(moves) for moves in steps(Native().schedule(3, [0, 0, 0], 9), 9)]
    [3, 3, 3, 3]
    """
    for phase in schedule.phases:
        if isinstance(phase, AllReduce):
            rings = [_ring(group, size_bytes) for group in phase.groups]
            for together in itertools.zip_longest(*rings, fillvalue=[]):
                yield [move for moves in together for move in moves]
        else:
            yield [
                Move(t.source, t.target, _length(schedule.slice_of(t.chunks, size_bytes)))
                for t in phase.transfers
            ]


def operations(schedule: Schedule) -> int:
    """Counts the sends, receives and all-reduces that the busiest rank of each phase starts.

    >>> operations(Ring().schedule(3, [0, 0, 0], 9))
    8
    """
    total = 0
    for phase in schedule.phases:
        if isinstance(phase, AllReduce):
            total += 1
        else:
            ends = Counter(rank for t in phase.transfers for rank in (t.source, t.target))
            total += max(ends.values(), default=0)
    return total


def _ring(group: Sequence[int], size_bytes: int) -> Iterator[list[Move]]:
    ranks = sorted(group)
    for moves in steps(Ring().schedule(len(ranks), [0] * len(ranks), size_bytes), size_bytes):
        yield [Move(ranks[m.source], ranks[m.target], m.size_bytes) for m in moves]


def _length(piece: slice) -> int:
    return piece.stop - piece.start
