"""The ranks of a cluster that reach each other directly, of which any may go and come again.

Each rank listens, and has a connection of its own to each other rank, on which it asks and the
other answers. A rank whose connection breaks is lost; it may come again as a new process. The ranks
that are left go on.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from tfdp.cluster import wire
from tfdp.cluster.connections import BUFFER_BYTES, Connections, Stream, bound, host_of_peer
from tfdp.cluster.handshake import STRANGER_SECONDS, SecretError, Strangers, connect
from tfdp.cluster.spec import Cluster, cannot_listen, host_of, port_of
from tfdp.errors import ClusterError, RankLostError

T = TypeVar("T")

# What a rank answers: given the rank that asks, a header that JSON can hold, and bytes.
Answer = Callable[[int, dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes]]]

_RETRY_SECONDS = 0.1
_PROBE_SECONDS = 3.0
_GIVEN_UP = "given up"
_LEAVES = "leaves"

# The time that a rank which leaves waits for what it has sent to be read.
_LEAVING_SECONDS = 2.0


def those_that_run(
    cluster: Cluster, introduction: dict[str, Any], secret: str | None
) -> dict[str, Any] | None:
    """Returns what a rank answers that has met the others already; None: none has.

    Rank 0 is not asked: it answers who comes to a rendezvous in any case.

    Args:
      cluster: The cluster, of which all addresses may be known.
      introduction: What this process says of itself, as to a rendezvous.
      secret: What all ranks know and nobody else, or None.
    """

    async def asked() -> dict[str, Any] | None:
        for rank, address in enumerate(cluster.addresses or ()):
            if rank in (0, cluster.rank):
                continue
            with contextlib.suppress(OSError, SecretError):
                async with asyncio.timeout(_PROBE_SECONDS):
                    said = introduction | {
                        "rank": cluster.rank,
                        "world_size": cluster.world_size,
                        "address": (cluster.addresses or ())[cluster.rank],
                    }
                    reader, writer = await connect(host_of(address), port_of(address), said, secret)
                    told, _ = await wire.read(reader)
                    writer.close()
                    return told
        return None

    return asyncio.run(asked())


class Peers:
    """The other ranks, as this one reaches them.

    All but `start`, `run` and `close` belongs to the event loop: it is called in its thread, from
    coroutines that `run` is given, and by `answer`. So what only they use needs no lock.

    Attributes:
      rank: The rank of this process.
      addresses: Where each rank listens, "host:port".
      alive: The ranks that take part, this one among them.
      gone: The ranks that have been lost, or have left.
      lost: Of each rank that is lost the reason.
      failure: Why this rank may not go on: others have given it up. None while it may.
      connections: The event loop.

    Args:
      rank: The rank of this process.
      addresses: Where each rank listens.
      answer: Answers what other ranks ask, in a task of its own for each message.
      changed: Called with a rank that has been lost, has left or has come.
      secret: What all ranks know and nobody else, or None.
      startup_seconds: How long all ranks may take to be there.
      timeout_seconds: How long a rank may take to answer, until it is given up.
      welcome: Answers a process that comes as to a rendezvous, given its introduction and where it
        came from. None: it is sent away.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        answer: Answer,
        changed: Callable[[int], None],
        secret: str | None = None,
        startup_seconds: float = 300.0,
        timeout_seconds: float = 600.0,
        welcome: Callable[[dict[str, Any], str], dict[str, Any]] | None = None,
    ) -> None:
        self.rank, self.addresses = rank, list(addresses)
        self.alive, self.gone, self.lost = {rank}, set[int](), dict[int, str]()
        self.failure: RankLostError | None = None
        self.connections = Connections()
        self._answer, self._changed, self._secret = answer, changed, secret
        self._welcome = welcome
        self._startup_seconds, self._timeout_seconds = startup_seconds, timeout_seconds
        self._strangers = Strangers(secret, len(addresses))
        self._asked: dict[int, dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]]] = {}
        self._streams: dict[int, Stream] = {}  # on which this rank asks
        self._incoming: dict[int, Stream] = {}  # on which others do
        self._tasks: set[asyncio.Task[None]] = set()
        self._number, self._leaving, self._is_closed = 0, False, False
        self._listening: asyncio.Server | None = None

    # ---- outside of the loop

    def start(self, there: Collection[int] | None = None) -> None:
        """Listens, and connects to the other ranks.

        Args:
          there: The ranks that are there; all others are gone. None: all ranks come.

        Raises:
          ClusterError: A rank cannot be reached in time, or its port is in use here.
        """
        ranks = set(range(len(self.addresses)))
        if there is not None:
            self.gone = ranks - {*there, self.rank}
        if len(ranks) > 1:
            self.run(self._start(sorted(ranks - self.gone - {self.rank})))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop, from any other thread, and returns its result."""
        return self.connections.run(coroutine)

    def close(self) -> None:
        """Leaves: the others go on without this rank, and do not count it as lost.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(Exception):
            self.run(self._leave())
        self.connections.close()

    # ---- in the loop

    async def ask(
        self, rank: int, header: dict[str, Any], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Returns what a rank answers; this rank answers itself.

        Raises:
          RankLostError: The rank is lost or has left, or this rank has been given up.
          ClusterError: The rank could not answer.
        """
        if self.failure is not None:
            raise self.failure
        if rank == self.rank:
            return await self._answer(rank, header, payload)
        if rank not in self._streams:
            raise self.error_of(rank)
        self._number += 1
        future = asyncio.get_running_loop().create_future()
        self._asked[rank][self._number] = future
        _, writer = self._streams[rank]
        writer.write(wire.frame({"number": self._number, "asks": header}, payload))
        with contextlib.suppress(OSError):  # the future then has the error
            await writer.drain()
        try:
            answer, data = await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            self.lose(
                rank,
                f"it did not answer within {self._timeout_seconds:g} s (it is stopped, or its host "
                "cannot be reached; `timeout_seconds` allows more)",
            )
            raise self.error_of(rank) from None
        if "fails" in answer:
            raise ClusterError(f"Rank {self.rank}: rank {rank} cannot answer: {answer['fails']}")
        return answer, data

    def lose(self, rank: int, reason: str) -> None:
        """Gives a rank up, and tells it and all others."""
        if rank not in self.alive or rank == self.rank:
            return
        for other in self.alive - {self.rank}:
            self._tell(other, {"tells": _GIVEN_UP, "rank": rank, "reason": reason})
        self._gone(rank, reason)

    def drop_out(self, reason: str) -> None:
        """Gives this rank up, which may not go on, and tells all others."""
        if self.failure is not None:
            return
        for other in self.alive - {self.rank}:
            self._tell(other, {"tells": _GIVEN_UP, "rank": self.rank, "reason": reason})
        self.failure = RankLostError(
            f"Rank {self.rank}: the others go on without this rank: {reason}. Start it again "
            "(`tfdp run --max-restarts` does), and it takes the current weights."
        )
        self._changed(self.rank)

    def error_of(self, rank: int) -> RankLostError:
        """Returns the error for who needs a rank that is gone."""
        error = RankLostError(
            f"Rank {self.rank}: lost rank {rank}: {self.lost.get(rank, 'it has left')}. Look at "
            "the output of that rank, and start it again."
        )
        error.rank = rank
        return error

    # ---- inside

    async def _start(self, others: Sequence[int]) -> None:
        own = self.addresses[self.rank]
        try:
            listener = bound(host_of(own), port_of(own))
        except (OSError, OverflowError) as error:
            raise cannot_listen(self.rank, port_of(own), error) from error
        self._listening = await asyncio.start_server(
            self._take_in, sock=listener, limit=BUFFER_BYTES
        )
        deadline = time.monotonic() + self._startup_seconds
        await asyncio.gather(*(self._reach(rank, deadline) for rank in others))

    async def _reach(self, rank: int, deadline: float) -> None:
        """Connects to a rank that starts, or has just come again."""
        address = self.addresses[rank]
        while True:
            remaining = deadline - time.monotonic()
            try:
                async with asyncio.timeout(min(max(remaining, 0.01), STRANGER_SECONDS)):
                    introduction = {"peer": self.rank, "address": self.addresses[self.rank]}
                    stream = await connect(
                        host_of(address), port_of(address), introduction, self._secret
                    )
                break
            except (OSError, SecretError) as error:
                if remaining <= _RETRY_SECONDS:
                    raise ClusterError(
                        f"Rank {self.rank}: rank {rank} must answer at {address} within "
                        f"{self._startup_seconds:g} s, but: {error or 'it is silent'}. Look at its "
                        "output, or open the port between the hosts."
                    ) from error
                await asyncio.sleep(_RETRY_SECONDS)
        self._streams[rank], self._asked[rank] = stream, {}
        self._keep(self._listen(rank, stream))
        self.alive.add(rank)
        self.gone.discard(rank)
        self.lost.pop(rank, None)
        self._changed(rank)

    async def _take_in(self, *stream: Any) -> None:
        """Answers a rank that has connected."""
        reader, writer = stream
        try:
            introduction = await self._strangers.greet((reader, writer))
            if "peer" not in introduction and self._welcome is not None:
                host = host_of_peer(writer)
                writer.write(wire.frame(self._welcome(introduction, host)))
                writer.close()
                return
            rank = wire.field(introduction, "peer", int)
            address = wire.field(introduction, "address", str)
            if not 0 <= rank < len(self.addresses) or rank == self.rank:
                raise wire.NoMessageError
        except (OSError, SecretError):  # not one of ours
            writer.transport.abort()
            return
        if rank in self._incoming or rank in self.gone:  # a new process in the place of one
            self._gone(rank, "another process has come in its place")
            self.addresses[rank] = address
            self._keep(self._reach(rank, time.monotonic() + self._startup_seconds))
        self._incoming[rank] = (reader, writer)
        try:
            while True:
                header, payload = await wire.read(reader)
                self._keep(self._reply(rank, header, payload, writer))
        except OSError:
            if self._incoming.get(rank) == (reader, writer):
                self._gone(rank, "its connection broke")

    async def _reply(
        self, rank: int, header: dict[str, Any], payload: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if "tells" in header:
            self._hear(rank, header)
            return
        try:
            answer, data = await self._answer(rank, header["asks"], payload)
        except Exception as error:  # who has asked must not wait for ever
            answer, data = {"fails": f"{type(error).__name__}: {error}"}, b""
        if not writer.is_closing():
            writer.write(wire.frame({"number": header["number"], "answer": answer}, data))

    async def _listen(self, rank: int, stream: Stream) -> None:
        """Reads what a rank answers, until it is gone."""
        try:
            while True:
                header, payload = await wire.read(stream[0])
                if "tells" in header:
                    self._hear(rank, header)
                    return
                future = self._asked[rank].pop(header["number"], None)
                if future is not None and not future.done():
                    future.set_result((header["answer"], payload))
        except OSError:
            if self._streams.get(rank) == stream:
                self._gone(rank, "its connection broke")

    def _hear(self, rank: int, header: dict[str, Any]) -> None:
        if header["tells"] == _LEAVES:
            self._gone(rank, None)
        elif header["rank"] == self.rank:
            self.failure = RankLostError(
                f"Rank {self.rank}: rank {rank} has given this rank up: {header['reason']}. The "
                "others go on without it: start it again, and it takes the current weights."
            )
            self._changed(self.rank)
        else:
            self._gone(header["rank"], header["reason"])

    def _tell(self, rank: int, header: dict[str, Any]) -> None:
        if rank in self._streams:
            self._streams[rank][1].write(wire.frame(header))

    def _gone(self, rank: int, reason: str | None) -> None:
        """Notes that a rank is lost, for a reason, or has left."""
        if self._leaving:
            return
        asked = self._asked.pop(rank, {})
        for streams in self._incoming, self._streams:
            if rank in streams:
                streams.pop(rank)[1].close()
        if rank in self.alive:
            self.alive.discard(rank)
            self.gone.add(rank)
            if reason is not None:
                self.lost[rank] = reason
            self._changed(rank)
        for future in asked.values():
            if not future.done():
                future.set_exception(self.error_of(rank))

    async def _leave(self) -> None:
        self._leaving = True
        # On both connections with each, of which either may be the first that the other sees end.
        for _, writer in [*self._streams.values(), *self._incoming.values()]:
            writer.write(wire.frame({"tells": _LEAVES}))
        if self._listening is not None:
            self._listening.close()
        for _, writer in [*self._streams.values(), *self._incoming.values()]:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), _LEAVING_SECONDS)
        for _, writer in [*self._streams.values(), *self._incoming.values()]:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.sleep(0)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the others; a loop alone holds tasks weakly."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
