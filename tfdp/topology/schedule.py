"""The definition of a topology: the schedule of phases by which a group of ranks sums a buffer.

Topologies make schedules of ranks by hosts, of steps side by side, and of slices of a buffer.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """A phase in which every group sums its ranks' whole buffers by the engine's own all-reduce.

    Attributes:
      groups: Disjoint tuples of ranks. A rank in no group sits the phase out.

    >>> AllReduce(groups=((0, 1), (2, 3))).group_of(2)
    (2, 3)
    """

    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = [rank for group in self.groups for rank in group]
        if len(set(ranks)) != len(ranks):
            raise ValueError(
                "The groups of a phase must be disjoint, but a rank is in two of "
                f"groups={self.groups}. Put overlapping groups into phases of their own."
            )

    def group_of(self, rank: int) -> tuple[int, ...] | None:
        """Returns the group that `rank` takes part in, or None."""
        return next((group for group in self.groups if rank in group), None)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A piece of the buffer that one rank sends to another.

    Attributes:
      source: The rank that sends.
      target: The rank that receives; another than `source`.
      chunks: The chunks of the schedule that are sent, neighbours of each other.
      reduce: Whether the target adds the chunks to its own; otherwise they replace its own.

    >>> Transfer(0, 1, range(2, 4), reduce=True).chunks.stop
    4
    """

    source: int
    target: int
    chunks: range
    reduce: bool

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(
                f"A transfer must join two ranks, but received source=target={self.source}. "
                "Leave it out: a rank has its own chunks."
            )
        if self.chunks.step != 1 or self.chunks.start < 0 or not self.chunks:
            raise ValueError(
                "`chunks` must be a range of neighbours with at least one, but received "
                f"{self.chunks}. Use range(first, last + 1)."
            )


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A phase of transfers that happen at the same time.

    Each transfer sends what its source held when the phase began. Of several arrivals for one
    chunk, the target starts from its own value and adds them in the order of their sources' ranks,
    so that every run gives the same bits. A chunk that is replaced has no other arrival.

    Attributes:
      transfers: The transfers, in any order. A rank in no transfer sits the phase out.

    >>> swap = Exchange((Transfer(0, 1, range(0, 1), True), Transfer(1, 0, range(1, 2), True)))
    >>> swap.sent_by(1)
    (Transfer(source=1, target=0, chunks=range(1, 2), reduce=True),)
    >>> swap.received_by(1)
    (Transfer(source=0, target=1, chunks=range(0, 1), reduce=True),)
    """

    transfers: tuple[Transfer, ...]

    def __post_init__(self) -> None:
        arrivals = sorted(self.transfers, key=lambda t: (t.target, t.chunks.start))
        for target, transfers in itertools.groupby(arrivals, key=lambda t: t.target):
            written = replaced = 0
            for transfer in transfers:
                if transfer.chunks.start < (replaced if transfer.reduce else written):
                    raise ValueError(
                        "A chunk that is replaced must have one arrival in a phase, but rank "
                        f"{target} receives chunk {transfer.chunks.start} more than once. Put "
                        "one of the transfers into a phase of its own."
                    )
                written = max(written, transfer.chunks.stop)
                if not transfer.reduce:
                    replaced = max(replaced, transfer.chunks.stop)

    def sent_by(self, rank: int) -> tuple[Transfer, ...]:
        """Returns the transfers that `rank` sends, by target and chunk."""
        sent = (transfer for transfer in self.transfers if transfer.source == rank)
        return tuple(sorted(sent, key=lambda t: (t.target, t.chunks.start)))

    def received_by(self, rank: int) -> tuple[Transfer, ...]:
        """Returns the transfers that `rank` receives, in order of addition: by source and chunk."""
        received = (transfer for transfer in self.transfers if transfer.target == rank)
        return tuple(sorted(received, key=lambda t: (t.source, t.chunks.start)))


#: A phase of a schedule.
Phase = AllReduce | Exchange


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The phases that every rank runs, one after the other.

    Attributes:
      phases: The phases in their order. After the last, every rank holds the sum over all ranks.
      chunks: The number of nearly equal neighbouring pieces into which transfers cut the buffer.
        Only their boundaries matter: there may be many more chunks than transfers, or than
        elements.

    >>> everyone = AllReduce(((0, 1),))
    >>> schedule = Schedule((everyone, Exchange((Transfer(0, 1, range(0, 1), reduce=False),))))
    >>> schedule.chunks, len(schedule.exchanges())
    (1, 1)
    >>> isinstance(everyone, Phase)
    True
    """

    phases: tuple[Phase, ...]
    chunks: int = 1

    def __post_init__(self) -> None:
        last = max((t.chunks.stop for p in self.exchanges() for t in p.transfers), default=1)
        if last > self.chunks:
            raise ValueError(
                f"Transfers must stay within the schedule's chunks: chunks={self.chunks}, but "
                f"chunk {last - 1} is sent. Use chunks={last} or more."
            )

    def exchanges(self) -> tuple[Exchange, ...]:
        """Returns the phases made of transfers."""
        return tuple(phase for phase in self.phases if isinstance(phase, Exchange))

    def slice_of(self, chunks: range, size: int) -> slice:
        """Returns the slice of `chunks` in a buffer of `size` elements (or bytes).

        >>> schedule = Schedule((), chunks=4)
        >>> [schedule.slice_of(range(c, c + 1), size=6) for c in range(4)]
        [slice(0, 1, None), slice(1, 3, None), slice(3, 4, None), slice(4, 6, None)]
        """
        return slice(size * chunks.start // self.chunks, size * chunks.stop // self.chunks)


class Topology(abc.ABC):
    """A rule for summing a buffer over ranks. Subclasses are frozen dataclasses.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class PairsFirst(Topology):
    ...     def schedule(self, world_size, hosts, size_bytes):
    ...         pairs = tuple((r, r + 1) for r in range(0, world_size, 2))
    ...         across = tuple(tuple(range(k, world_size, 2)) for k in (0, 1))
    ...         return Schedule((AllReduce(pairs), AllReduce(across)))
    >>> len(PairsFirst().schedule(4, [0, 0, 0, 0], 1024).phases)
    2
    """

    @abc.abstractmethod
    def schedule(self, world_size: int, hosts: Sequence[int], size_bytes: int) -> Schedule:
        """Returns the schedule for one buffer.

        Args:
          world_size: The number of ranks, at least 1.
          hosts: For each rank the index of the host that it runs on.
          size_bytes: The size of the buffer, the same on every rank.

        Returns:
          Phases after which each rank holds the same bits of the sum over all ranks.

        Raises:
          ValueError: `hosts` does not have one entry per rank, or the topology cannot cover the
            ranks.
        """


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
