"""The rendezvous: every process says who it is before TensorFlow listens or waits.

1. Rank 0 listens on its own address, where TensorFlow will listen afterwards.
2. The others connect, show that they know the secret, and say which rank they are, what they run
   and where they can be reached.
3. Rank 0 compares the introductions, and sends all of them, or the reason to stop, to everyone.

The connections stay open; `tfdp.cluster.control_channel` continues to use them.
"""

import asyncio
import dataclasses
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from tfdp.base.words import ranks_in_words
from tfdp.cluster import wire
from tfdp.cluster.connections import Connections, Stream, bound, host_of_peer
from tfdp.cluster.handshake import STRANGER_SECONDS, SecretError, connect
from tfdp.cluster.rendezvous_server import Gathering
from tfdp.cluster.secret import HOW_TO_GIVE_ONE
from tfdp.cluster.spec import Cluster, cannot_listen, host_of, port_of
from tfdp.errors import ClusterError

# The pause between two attempts to reach rank 0.
_RETRY_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The result of a rendezvous.

    Attributes:
      introductions: For each rank what it said of itself.
      connections: On rank 0 the connections to all others, elsewhere the connection to rank 0.
      port: Elsewhere a socket that keeps the port of this rank's address for TensorFlow, which can
        listen there beside it; on rank 0 the connections keep it. See `close_port`.
    """

    introductions: list[dict[str, Any]]
    connections: Connections
    port: socket.socket | None = None

    def close_port(self) -> None:
        """Ends to keep the port: TensorFlow listens there, or never will."""
        if self.port is not None:
            self.port.close()

    @property
    def addresses(self) -> list[str]:
        """The address of each rank, as "host:port"."""
        return [introduction["address"] for introduction in self.introductions]

    @property
    def host_numbers(self) -> list[int]:
        """For each rank the number of the first rank whose address has the same host."""
        names = [host_of(address) for address in self.addresses]
        return [names.index(name) for name in names]

    @property
    def hosts(self) -> list[str | None]:
        """The IP address that each rank came from, as rank 0 saw it; rank 0's own may be None."""
        return [introduction.get("host") for introduction in self.introductions]


def meet(
    cluster: Cluster,
    introduction: dict[str, Any],
    compare: Callable[[list[dict[str, Any]]], str | None],
    timeout_seconds: float,
    secret: str | None = None,
    listener: socket.socket | None = None,
) -> Meeting:
    """Waits until all ranks of `cluster` are there.

    Args:
      cluster: The cluster as the environment describes it.
      introduction: What the others must know of this process; JSON.
      compare: Called on rank 0 with all introductions; returns the reason to stop, or None.
      timeout_seconds: The time after which the missing ranks are named.
      secret: What all ranks know and nobody else. With None anybody may pose as a rank, and rank 0
        warns of that.
      listener: Rank 0's socket, bound to its address already; None: it is bound here.

    Raises:
      ClusterError: A rank did not come, a port is in use, two processes have one rank, this process
        has not rank 0's secret, or `compare` gave a reason.
    """
    deadline = time.monotonic() + timeout_seconds
    address, port = _own_address(cluster)
    own = {
        **introduction,
        "rank": cluster.rank,
        "world_size": cluster.world_size,
        "address": address,
    }
    connections = Connections()
    try:
        if cluster.rank == 0:
            meeting = _gather(cluster, own, compare, deadline, timeout_seconds, secret, listener)
        else:
            meeting = _introduce(cluster, own, deadline, timeout_seconds, secret)
        introductions, connections.streams = connections.run(meeting)
    except BaseException:
        connections.close()
        if port is not None:
            port.close()
        raise
    return Meeting(introductions, connections, port)


def _own_address(cluster: Cluster) -> tuple[str | None, socket.socket | None]:
    """Returns the address for TensorFlow's server, and what keeps its port but on rank 0.

    The address is ":port" where only rank 0 knows the host.
    """
    if cluster.rank == 0:
        return cluster.coordinator, None
    if cluster.addresses is not None:
        own = cluster.addresses[cluster.rank]
        _listen(cluster, own).close()
        return own, _listen(cluster, own, _kept)
    port = _kept("", 0)
    return f":{port.getsockname()[1]}", port


def _kept(_: str, port: int) -> socket.socket:
    """Returns a socket that has a port, on all interfaces, and does not listen there.

    No other program is given it as a free port then, and no connection begins there. A socket with
    REUSEADDR, as TensorFlow's and ours have it, can be bound to it and listen.
    """
    kept = socket.socket()
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("", port))
    except BaseException:
        kept.close()
        raise
    return kept


def _listen(
    cluster: Cluster, address: str, bind: Callable[[str, int], socket.socket] = bound
) -> socket.socket:
    """Binds the port of `address`."""
    port = port_of(address)
    try:
        return bind(host_of(address), port)
    except (OSError, OverflowError) as error:
        raise cannot_listen(cluster.rank, port, error, f", as {cluster.source} says") from error


async def _gather(
    cluster: Cluster,
    own: dict[str, Any],
    compare: Callable[[list[dict[str, Any]]], str | None],
    deadline: float,
    timeout_seconds: float,
    secret: str | None,
    listener: socket.socket | None,
) -> tuple[list[dict[str, Any]], dict[int, Stream]]:
    assert cluster.coordinator is not None
    if secret is None:
        logging.getLogger("tfdp").warning(
            "Rank 0: the ranks have no secret, so whoever reaches %s may pose as one of them. %s",
            cluster.coordinator,
            HOW_TO_GIVE_ONE,
        )
    came = Gathering(cluster, own, secret)
    port = listener or _listen(cluster, cluster.coordinator)
    reason = await came.wait(port, deadline - time.monotonic())
    missing = came.missing()
    if reason is None and missing:
        reason = (
            f"Every rank must come within {timeout_seconds:g} s, but {ranks_in_words(missing)} of "
            f"{cluster.world_size} did not connect to {cluster.coordinator} "
            f"({_expected(cluster, missing)}). {came.turned_away(missing)}Look at the output of "
            "the missing ranks; start them, open the port between the hosts, or allow more time "
            "with `startup_timeout_seconds`."
        )
    introductions = [came.introductions.get(rank, {}) for rank in range(cluster.world_size)]
    reason = reason or compare(introductions)
    for _, writer in came.streams.values():
        writer.write(wire.frame({"all": introductions, "reason": reason}))
        if reason is not None:
            writer.close()
    if reason is not None:
        raise ClusterError(f"Rank 0: {reason}")
    return introductions, came.streams


async def _introduce(
    cluster: Cluster,
    own: dict[str, Any],
    deadline: float,
    timeout_seconds: float,
    secret: str | None,
) -> tuple[list[dict[str, Any]], dict[int, Stream]]:
    stream = await _connect(cluster, own, deadline, timeout_seconds, secret)
    try:
        # Rank 0 answers when all are there, or when its own time is over.
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0) + STRANGER_SECONDS):
            answer, _ = await wire.read(stream[0])
            introductions = wire.field(answer, "all", list)
    except OSError as error:
        stream[1].close()
        raise _no_answer(cluster, error) from error
    if answer.get("reason") is not None:
        stream[1].close()
        raise ClusterError(f"Rank {cluster.rank}: {answer['reason']}")
    introductions[0]["host"] = host_of_peer(stream[1])
    return introductions, {0: stream}


async def _connect(
    cluster: Cluster,
    own: dict[str, Any],
    deadline: float,
    timeout_seconds: float,
    secret: str | None,
) -> Stream:
    """Returns the stream to rank 0, to which this process has introduced itself."""
    assert cluster.coordinator is not None
    host, port = host_of(cluster.coordinator), port_of(cluster.coordinator)
    while True:
        remaining = deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(max(remaining, 0.01), STRANGER_SECONDS)):
                # A host name may be unknown until its container has started: this is retried, too.
                return await connect(host, port, own, secret)
        except SecretError as error:
            raise ClusterError(
                f"Rank {cluster.rank}: all ranks must have the same secret, but {error}. "
                f"{HOW_TO_GIVE_ONE}"
            ) from None
        except OSError as error:  # also another program, such as an earlier run that is not gone
            if remaining <= _RETRY_SECONDS:
                if isinstance(error, wire.NoMessageError):
                    raise _no_answer(cluster, error) from error
                raise ClusterError(
                    f"Rank {cluster.rank}: rank 0 must answer at {cluster.coordinator} within "
                    f"{timeout_seconds:g} s, but: {_in_words(error)}. Start rank 0, mend its "
                    f"address in {cluster.source}, open the port between the hosts, or allow more "
                    "time with `startup_timeout_seconds`."
                ) from error
            await asyncio.sleep(_RETRY_SECONDS)


def _in_words(error: OSError) -> str:
    return str(error) or "it is silent"


def _no_answer(cluster: Cluster, error: OSError) -> ClusterError:
    return ClusterError(
        f"Rank {cluster.rank}: rank 0 at {cluster.coordinator} must say when all ranks are there, "
        f"but: {_in_words(error)}. Look at the output of rank 0; is another program "
        "listening on its port?"
    )


def _expected(cluster: Cluster, ranks: list[int]) -> str:
    if cluster.addresses is None:
        return f"as {cluster.source} says"
    return "expected at " + ", ".join(cluster.addresses[rank] for rank in ranks)
