"""Sums over the ranks that come first, which wait for no other: point to point, and all alike.

1. A rank that comes to sum number t tells rank 0, which closes the sum once enough have come, and
   tells all ranks which these are.
2. These sum among themselves, in the order of ranks, as in any collective.
3. One of them sends the sum to each rank that comes late. So all ranks have the same sums, bit for
   bit, in the same order.

A thread of rank 0 closes sums, so that its own computation holds up nobody. Sums that a late rank
has not fetched are kept for it.
"""

import collections
import dataclasses
import threading
from collections.abc import Sequence

import numpy as np

from tfdp.communication.engines.host import collective_programs
from tfdp.communication.engines.host.byte_transport import (
    MOST_SLICES_BETWEEN_HOSTS,
    ByteTransport,
    Lane,
    Request,
)
from tfdp.communication.engines.host.collective_programs import HostCollective, Strand, aligned
from tfdp.communication.engines.host.driver import Driver

# The tags of the messages; those of the sums themselves begin after these.
_ARRIVAL, _CLOSING, _SUM = range(3)

# A sum has one of so many lanes, by its number. Two with one lane are never under way together.
_LANES = 64

# The sums that a rank remembers who was in them.
_MOST_KNOWN = 2**16

# The most bytes of sums that a late rank has not fetched: a further one waits until it fetches one.
MOST_KEPT_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class ClosedSum:
    """A sum that was closed.

    Attributes:
      members: The ranks whose values it has, ascending.
      counted: Those of them that came with examples: one may have left its step out.
      rows: The examples of these.
      all_rows: Those of all ranks.
    """

    members: tuple[int, ...]
    counted: tuple[int, ...]
    rows: int
    all_rows: int


class FirstArrivals:
    """The sums of one rank. All ranks make as many, in the same order.

    Args:
      transport: Moves the bytes between ranks; nothing else uses it. A process is a rank.
      rank: The rank of this process.
      hosts: For each rank the index of its host.
      count: The number of ranks that close a sum.
      most_kept_bytes: The most bytes of sums that are kept for a rank; one is always kept.

    Attributes:
      closed: What this rank knows of the latest sums, the last one last.
      dropped_rows: The examples that sums so far do without, as far as this rank knows.
    """

    def __init__(
        self,
        transport: ByteTransport[Request],
        rank: int,
        hosts: Sequence[int],
        count: int,
        most_kept_bytes: int = MOST_KEPT_BYTES,
    ) -> None:
        self._transport, self._rank, self._count = transport, rank, count
        self._hosts, self._most_kept_bytes = tuple(hosts), most_kept_bytes
        self._number = 0  # of the next sum
        self._closing = self._next_closing()
        self._kept: dict[int, collections.deque[_Fetched]] = collections.defaultdict(
            collections.deque
        )
        # Runs what goes on while the rank computes; nobody watches how long that takes.
        self._driver = Driver()
        self._ended = threading.Event()
        self.closed: collections.deque[ClosedSum] = collections.deque(maxlen=_MOST_KNOWN)
        self._untold: collections.deque[ClosedSum] = collections.deque(maxlen=_MOST_KNOWN)
        self.dropped_rows = 0
        if rank == 0:
            arbiter = HostCollective([_until(_Arbiter(transport, len(hosts), count))], np.empty(0))
            self._driver.hand_over(arbiter, "", lambda error: self._ended.set())

    def end(self) -> None:
        """Ends what goes on beside: no rank may sum afterwards."""
        self._driver.abort("The sums have ended.")
        if self._rank == 0:
            self._ended.wait(5)

    def take_untold(self) -> list[ClosedSum]:
        """Returns the sums since the last call, or the latest of them."""
        found = list(self._untold)
        self._untold.clear()
        return found

    def is_closed(self) -> bool:
        """Returns whether the next sum was closed without this rank, which need not compute."""
        return self._closing.done()

    def sum(self, own: np.ndarray, rows: int, all_rows: int) -> HostCollective:
        """Begins the rank's next sum.

        Args:
          own: What it adds, if it comes in time; one axis.
          rows: The number of the examples that it is of. A sum has some, if there are any.
          all_rows: Those of all ranks.
        """
        collective = HostCollective([], own)
        collective.strands.append(self._strand(collective, own, rows, all_rows))
        return collective

    def _strand(
        self, collective: HostCollective, own: np.ndarray, rows: int, all_rows: int
    ) -> Strand:
        number, self._number = self._number, self._number + 1
        if not self._closing.done():
            told = np.array([number, rows, all_rows], np.int64)
            yield [self._transport.send(told, 0, _ARRIVAL), self._closing]
        of_ranks = self._closing.array
        assert of_ranks[-1] == number, "a sum was closed out of order"
        self._closing = self._next_closing()
        members = tuple(np.flatnonzero(of_ranks[:-1] >= 0).tolist())
        counted = tuple(np.flatnonzero(of_ranks[:-1] > 0).tolist())
        closed = ClosedSum(members, counted, int(of_ranks[list(members)].sum()), all_rows)
        self.closed.append(closed)
        self._untold.append(closed)
        self.dropped_rows += all_rows - closed.rows
        late = [rank for rank in range(len(self._hosts)) if rank not in members]
        senders = {rank: members[place % len(members)] for place, rank in enumerate(late)}
        if self._rank not in members:
            collective.result = aligned(own.shape, own.dtype)
            yield [self._transport.receive(collective.result, senders[self._rank], _SUM)]
            return
        inner = HostCollective([], own)
        if len(members) > 1:
            lane = _LaneOfMembers(self._transport, self._rank, number)
            inner = collective_programs.all_reduce(own, lane, members, self._hosts)
        for strand in inner.strands:
            yield from strand
        collective.result = inner.result
        for rank in late:
            if senders[rank] == self._rank:
                yield from self._keep(inner.result, rank)

    def _keep(self, result: np.ndarray, rank: int) -> Strand:
        """Sends a sum to a rank that has not come yet; waits where too many are kept for it."""
        kept = self._kept[rank]
        while kept and kept[0].done():
            kept.popleft()
        if kept and (len(kept) + 1) * result.nbytes > self._most_kept_bytes:
            yield [kept.popleft()]
        # The operations that use the sum may write into its memory.
        request, fetched = self._transport.send(result.copy(), rank, _SUM), _Fetched()
        kept.append(fetched)
        collective = HostCollective([_until(request)], np.empty(0))
        self._driver.hand_over(collective, "", fetched.note)

    def _next_closing(self) -> "_Closing":
        return _Closing(self._transport, len(self._hosts))


class _LaneOfMembers(Lane):
    """The sends and receives of a sum; its tags are apart from those of other messages."""

    def __init__(self, transport: ByteTransport[Request], rank: int, number: int) -> None:
        super().__init__(transport, rank, 1, 1 + number % _LANES)
        assert self._first_tag >= MOST_SLICES_BETWEEN_HOSTS > _SUM


class _Fetched:
    """A request that another thread polls, and notes that it is done."""

    def __init__(self) -> None:
        self._is_done = False

    def note(self, error: Exception | None) -> None:
        self._is_done = True

    def done(self) -> bool:
        """Returns whether it is, see `Request`."""
        return self._is_done


class _Closing:
    """A request: what rank 0 says of the next sum.

    Attributes:
      array: For each rank the number of its examples in the sum, -1 of one that is not in it; and
        the number of the sum.
    """

    def __init__(self, transport: ByteTransport[Request], world_size: int) -> None:
        self._transport = transport
        self.array = np.empty(world_size + 1, np.int64)
        self._received: Request | None = None

    def done(self) -> bool:
        """Polls, see `Request`; nothing is received before it is there."""
        if self._received is None:
            if not self._transport.has_arrived(0, _CLOSING):
                return False
            self._received = self._transport.receive(self.array, 0, _CLOSING)
        return self._received.done()


class _Arbiter:
    """A request that is never done: closes sums on rank 0 as ranks come."""

    def __init__(self, transport: ByteTransport[Request], world_size: int, count: int) -> None:
        self._transport, self._count = transport, count
        self._number = 0  # of the sum that is open
        self._rows: dict[int, int] = {}  # of the ranks that have come to it
        self._all_rows = 0
        self._receiving: dict[int, tuple[np.ndarray, Request]] = {}
        self._world_size = world_size
        self._sending: list[Request] = []

    def done(self) -> bool:
        """Hears who has come, and closes the sum that is open, if these are enough."""
        while self._sending and self._sending[0].done():
            del self._sending[0]
        for rank in range(self._world_size):
            self._hear(rank)
            if len(self._rows) >= self._count and self._has_rows():
                self._close()
        return False

    def _hear(self, rank: int) -> None:
        if rank not in self._receiving:
            if not self._transport.has_arrived(rank, _ARRIVAL):
                return
            told = np.empty(3, np.int64)
            self._receiving[rank] = told, self._transport.receive(told, rank, _ARRIVAL)
        told, request = self._receiving[rank]
        if not request.done():
            return
        del self._receiving[rank]
        number, rows, all_rows = told.tolist()
        if number == self._number:  # else it was closed meanwhile
            self._rows[rank] = rows
            self._all_rows = all_rows

    def _has_rows(self) -> bool:
        return any(self._rows.values()) or not self._all_rows

    def _close(self) -> None:
        of_ranks = [self._rows.get(rank, -1) for rank in range(self._world_size)]
        told = np.array([*of_ranks, self._number], np.int64)
        self._sending += [
            self._transport.send(told, rank, _CLOSING) for rank in range(self._world_size)
        ]
        self._number, self._rows = self._number + 1, {}


def _until(request: Request) -> Strand:
    yield [request]
