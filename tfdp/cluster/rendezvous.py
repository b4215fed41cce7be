"""The start of a cluster: every process says who it is before TensorFlow listens or waits.

1. Rank 0 listens on its own address, where TensorFlow will listen afterwards.
2. The others connect, and say which rank they are, what they run and where they can be reached.
3. Rank 0 compares, and gives everyone all that was said, or the reason to stop.

The connections stay open: `tfdp.cluster.board` goes on with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable
from typing import Any

from tfdp.cluster import wire
from tfdp.cluster.spec import Cluster, host_of, join_address, split_address
from tfdp.errors import ClusterError

# How long one message may take once a connection stands, and the pause between two attempts.
_MESSAGE_SECONDS = 10.0
_RETRY_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Meeting:
    """What a rendezvous ends with.

    Attributes:
      introductions: For each rank what it said of itself.
      connections: By rank: those of rank 0 to all others, or that of this process to rank 0.
    """

    introductions: list[dict[str, Any]]
    connections: dict[int, socket.socket]

    @property
    def addresses(self) -> list[str]:
        """Where each rank can be reached, as "host:port"."""
        return [introduction["address"] for introduction in self.introductions]


def meet(
    cluster: Cluster,
    introduction: dict[str, Any],
    compare: Callable[[list[dict[str, Any]]], str | None],
    timeout_seconds: float,
) -> Meeting:
    """Waits until all ranks of `cluster` are there.

    Args:
      cluster: As the environment describes it.
      introduction: What the others must know of this process; JSON.
      compare: Called on rank 0 with all introductions; gives the reason to stop, or None.
      timeout_seconds: After it the missing ranks are named.

    Raises:
      ClusterError: A rank did not come, a port is in use, two processes have one rank, or what
        `compare` says.
    """
    deadline = time.monotonic() + timeout_seconds
    own = {
        **introduction,
        "protocol": "tfdp 1",
        "rank": cluster.rank,
        "world_size": cluster.world_size,
        "address": _own_address(cluster),
    }
    if cluster.rank == 0:
        return _gather(cluster, own, compare, deadline, timeout_seconds)
    return _introduce(cluster, own, deadline, timeout_seconds)


def _own_address(cluster: Cluster) -> str | None:
    """Where TensorFlow will listen; the host is None where only rank 0 can tell it."""
    if cluster.rank == 0:
        return cluster.coordinator
    if cluster.addresses is not None:
        own = cluster.addresses[cluster.rank]
        _listen(cluster, own).close()
        return own
    with socket.socket() as free:
        free.bind(("", 0))
        return f":{free.getsockname()[1]}"


def _listen(cluster: Cluster, address: str) -> socket.socket:
    host, port = split_address(address)
    listener = socket.socket(_family(host))
    # TensorFlow binds the same port while the connections of this one still stand.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen(cluster.world_size + 8)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ClusterError(
            f"Rank {cluster.rank} must be able to listen on port {port}, as {cluster.source} says, "
            f"but: {error}. End the process that uses the port (`ss -ltnp 'sport = :{port}'` "
            "names it), or give this rank another port on all hosts."
        ) from error
    return listener


def _family(host: str) -> socket.AddressFamily:
    """IPv6 where the host has nothing else."""
    try:
        found = {family for family, *_ in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:  # a name that is known to others only
        return socket.AF_INET
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def _gather(
    cluster: Cluster,
    own: dict[str, Any],
    compare: Callable[[list[dict[str, Any]]], str | None],
    deadline: float,
    timeout_seconds: float,
) -> Meeting:
    assert cluster.coordinator is not None
    arrived: dict[int, dict[str, Any]] = {0: own}
    connections: dict[int, socket.socket] = {}
    reason: str | None = None
    with _listen(cluster, cluster.coordinator) as listener:
        while len(arrived) < cluster.world_size and reason is None:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection, peer = listener.accept()
            except TimeoutError:
                missing = [r for r in range(cluster.world_size) if r not in arrived]
                reason = (
                    f"Every rank must come within {timeout_seconds:g} s, but {_ranks(missing)} of "
                    f"{cluster.world_size} did not connect to {cluster.coordinator} "
                    f"({_expected(cluster, missing)}). Look at the output of the missing ranks; "
                    "start them, open the port between the hosts, or allow more time with "
                    "`startup_timeout_seconds`."
                )
                break
            reason = _welcome(cluster, connection, peer[0], arrived, connections)
    introductions = [arrived.get(rank, {}) for rank in range(cluster.world_size)]
    reason = reason or compare(introductions)
    for connection in connections.values():
        with contextlib.suppress(OSError):
            wire.send(connection, {"all": introductions, "reason": reason})
    if reason is not None:
        _close(connections)
        raise ClusterError(f"Rank 0: {reason}")
    return Meeting(introductions, connections)


def _welcome(
    cluster: Cluster,
    connection: socket.socket,
    host: str,
    arrived: dict[int, dict[str, Any]],
    connections: dict[int, socket.socket],
) -> str | None:
    """Takes one process in; gives the reason to stop, if it shows one."""
    connection.settimeout(_MESSAGE_SECONDS)
    try:
        introduction = wire.receive(connection)
        rank, world_size = introduction["rank"], introduction["world_size"]
        if introduction["protocol"] != arrived[0]["protocol"]:
            raise KeyError("protocol")
        numbers = isinstance(rank, int) and isinstance(world_size, int)
        if not numbers or not isinstance(introduction["address"], str):
            raise KeyError("rank")
    except (OSError, KeyError):
        connection.close()  # Not one of us: a scanner, or another program.
        return None
    if rank in arrived:
        reason = (
            f"Each rank must be one process, but two say that they are rank {rank} (the second "
            f"from {host}). Give each process its own index in {cluster.source}."
        )
        with contextlib.suppress(OSError), connection:
            wire.send(connection, {"all": [], "reason": reason})
        return reason
    connections[rank] = connection
    if world_size != cluster.world_size or not 0 < rank < world_size:
        return (
            f"All ranks must know the same cluster, but rank {rank} (from {host}) says there are "
            f"{world_size} ranks and rank 0 says {cluster.world_size}. Make {cluster.source} "
            "alike on all hosts."
        )
    if introduction["address"].startswith(":"):
        # A process on rank 0's host may have come by the loopback interface.
        local = host == "::1" or host.startswith("127.")
        reachable = host_of(str(cluster.coordinator)) if local else host
        introduction["address"] = join_address(reachable, int(introduction["address"][1:]))
    arrived[rank] = introduction
    return None


def _introduce(
    cluster: Cluster, own: dict[str, Any], deadline: float, timeout_seconds: float
) -> Meeting:
    connection = _connect(cluster, deadline, timeout_seconds)
    try:
        wire.send(connection, own)
        # Rank 0 answers when all are there, or when its own time is over.
        connection.settimeout(max(deadline - time.monotonic(), 0.0) + _MESSAGE_SECONDS)
        answer = wire.receive(connection)
    except OSError as error:
        connection.close()
        raise ClusterError(
            f"Rank {cluster.rank}: rank 0 at {cluster.coordinator} must say when all ranks are "
            f"there, but: {error}. Look at the output of rank 0; is another program listening on "
            "its port?"
        ) from error
    if answer.get("reason") is not None:
        connection.close()
        raise ClusterError(f"Rank {cluster.rank}: {answer['reason']}")
    return Meeting(answer["all"], {0: connection})


def _connect(cluster: Cluster, deadline: float, timeout_seconds: float) -> socket.socket:
    assert cluster.coordinator is not None
    host, port = split_address(cluster.coordinator)
    while True:
        remaining = deadline - time.monotonic()
        try:
            # A host name may be unknown until its container has started: that is retried too.
            connection = socket.create_connection((host, port), min(max(remaining, 0.01), 10.0))
            connection.settimeout(_MESSAGE_SECONDS)
            return connection
        except OSError as error:
            if remaining <= _RETRY_SECONDS:
                raise ClusterError(
                    f"Rank {cluster.rank}: rank 0 must answer at {cluster.coordinator} within "
                    f"{timeout_seconds:g} s, but: {error}. Start rank 0, mend its address in "
                    f"{cluster.source}, open the port between the hosts, or allow more time with "
                    "`startup_timeout_seconds`."
                ) from error
            time.sleep(_RETRY_SECONDS)


def _expected(cluster: Cluster, ranks: list[int]) -> str:
    if cluster.addresses is None:
        return f"as {cluster.source} says"
    return "expected at " + ", ".join(cluster.addresses[rank] for rank in ranks)


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _close(connections: dict[int, socket.socket]) -> None:
    for connection in connections.values():
        connection.close()
