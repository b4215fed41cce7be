"""Rank 0's side of the rendezvous, which takes in all processes that come, at once."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterable
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.connections import BUFFER_BYTES, Stream, host_of_peer
from tfdp.cluster.handshake import SecretError, Strangers
from tfdp.cluster.secret import HOW_TO_GIVE_ONE
from tfdp.cluster.spec import Cluster, host_of, join_address, split_address
from tfdp.errors import ClusterError

# The number of connections that the kernel keeps until they are taken. Without room in this queue
# a process waits for seconds.
_BACKLOG = 1024


class Gathering:
    """The processes that have come to rank 0.

    Attributes:
      introductions: Each rank's words about itself; rank 0's are there from the beginning.
      streams: The connections to the other processes, by rank.

    Args:
      cluster: The cluster as rank 0 sees it.
      own: What rank 0 says of itself. The others must give the same fields.
      secret: The secret that the other processes must know, or None.
    """

    def __init__(self, cluster: Cluster, own: dict[str, Any], secret: str | None) -> None:
        self.introductions: dict[int, dict[str, Any]] = {0: own}
        self.streams: dict[int, Stream] = {}
        self._cluster = cluster
        self._own = own
        self._secret = secret
        self._strangers = Strangers(secret, cluster.world_size)
        self._turned_away: dict[int, str] = {}
        self._over: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def wait(self, listener: socket.socket, seconds: float) -> str | None:
        """Takes in who comes to `listener` until all are there; returns a reason to stop, or None.

        Args:
          listener: A socket bound to rank 0's port; it is closed at the end.
          seconds: How long all processes together have.
        """
        listening = await asyncio.start_server(
            self._meet, sock=listener, limit=BUFFER_BYTES, backlog=_BACKLOG
        )
        try:
            return await asyncio.wait_for(asyncio.shield(self._over), max(seconds, 0.01))
        except TimeoutError:
            return None
        finally:
            listening.close()
            self._strangers.send_away()

    def missing(self) -> list[int]:
        """Returns the ranks that are not there."""
        return [r for r in range(self._cluster.world_size) if r not in self.introductions]

    def turned_away(self, ranks: Iterable[int]) -> str:
        """Returns a sentence and a space for each of `ranks` that was turned away."""
        return "".join(f"{self._turned_away[r]} " for r in ranks if r in self._turned_away)

    async def _meet(self, *stream: Any) -> None:
        reader, writer = stream
        host = host_of_peer(writer)
        try:
            introduction = await self._strangers.greet((reader, writer))
            self._check(introduction)
            self._take_in(introduction, (reader, writer), host)
        except SecretError as error:
            writer.close()
            with contextlib.suppress(wire.NoMessageError):
                self._check(error.introduction)
                self._refuse(error.introduction["rank"], str(error), host)
        except OSError:  # not one of ours: a scanner, or another program
            writer.transport.abort()

    def _check(self, introduction: dict[str, Any]) -> None:
        """Raises NoMessageError unless `introduction` has the same fields as rank 0's own."""
        for name, value in self._own.items():
            wire.field(introduction, name, type(value))
        address = introduction["address"]
        try:
            split_address(f"host{address}" if address.startswith(":") else address)
        except ClusterError as error:
            raise wire.NoMessageError from error

    def _refuse(self, rank: int, has: str, host: str) -> None:
        """Reports a wrong secret: as an error only where anybody can end the job anyway."""
        if self._secret is None:
            self._stop(
                f"All ranks must have the same secret, but rank {rank} (from {host}) {has} and "
                f"rank 0 has none. {HOW_TO_GIVE_ONE}"
            )
        elif rank in self.missing() and rank not in self._turned_away:  # once, however often
            self._turned_away[rank] = (
                f"All ranks must have rank 0's secret, but what came from {host} as rank {rank} "
                f"{has}, and was sent away. If it is of this job: {HOW_TO_GIVE_ONE}"
            )
            logging.getLogger("tfdp").warning("Rank 0: %s", self._turned_away[rank])

    def _take_in(self, introduction: dict[str, Any], stream: Stream, host: str) -> None:
        rank, world_size = introduction["rank"], introduction["world_size"]
        source = self._cluster.source
        if rank in self.streams and self.streams[rank][0].at_eof():
            del self.introductions[rank], self.streams[rank]  # the rank has come again
        if rank in self.introductions:
            reason = (
                f"Each rank must be one process, but two say that they are rank {rank} (the second "
                f"from {host}). Give each process its own index in {source}."
            )
            stream[1].write(wire.frame({"all": [], "reason": reason}))
            stream[1].close()
            return self._stop(reason)
        self.streams[rank] = stream
        if world_size != self._cluster.world_size or not 0 < rank < world_size:
            return self._stop(
                f"All ranks must know the same cluster, but rank {rank} (from {host}) says there "
                f"are {world_size} ranks and rank 0 says {self._cluster.world_size}. Make {source} "
                "alike on all hosts."
            )
        if introduction["address"].startswith(":"):
            # A process on rank 0's host may have come by the loopback interface.
            near = ipaddress.ip_address(host).is_loopback
            reachable = host_of(str(self._cluster.coordinator)) if near else host
            introduction["address"] = join_address(reachable, int(introduction["address"][1:]))
        self.introductions[rank] = introduction | {"host": host}
        if not self.missing():
            self._stop(None)

    def _stop(self, reason: str | None) -> None:
        if not self._over.done():
            self._over.set_result(reason)
