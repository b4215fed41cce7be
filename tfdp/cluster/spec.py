"""The description of a cluster: the processes that train together, and where they listen."""

from __future__ import annotations

import dataclasses
import ipaddress
import re

from tfdp.errors import ClusterError

NO_CLUSTER = "no cluster in the environment"

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True)
class Cluster:
    """One process' view of the cluster. Ranks count processes, not devices.

    Attributes:
      rank: The rank of this process, from 0.
      world_size: The number of processes.
      coordinator: Rank 0's "host:port"; None for one process.
      addresses: "host:port" of every rank, in the order of ranks, where the environment fixes them;
        else None: all then know `coordinator`, and the others choose ports of their own.
      source: Where the description was read, for messages: "TF_CONFIG", "Slurm (SLURM_PROCID)", ...
      job: TensorFlow's name of this process' job: "chief" or "worker".

    Raises:
      ClusterError: The values contradict each other.

    >>> Cluster(1, 2, "a:2000", ("a:2000", "b:2000"), "TF_CONFIG").addresses[1]
    'b:2000'
    >>> Cluster(2, 2, "a:2000")
    Traceback (most recent call last):
    tfdp.errors.ClusterError: `rank` must be at least 0 and below `world_size`=2, but is 2. ...
    """

    rank: int
    world_size: int
    coordinator: str | None = None
    addresses: tuple[str, ...] | None = None
    source: str = NO_CLUSTER
    job: str = "worker"

    def __post_init__(self) -> None:
        _check_count("world_size", self.world_size, at_least=1)
        _check_count("rank", self.rank, at_least=0)
        if self.rank >= self.world_size:
            raise ClusterError(
                f"`rank` must be at least 0 and below `world_size`={self.world_size}, but is "
                f"{self.rank}. Count the ranks from 0, and all of them in `world_size`."
            )
        who = f"Rank {self.rank}: "
        if self.world_size == 1:
            if self.coordinator is not None or self.addresses is not None:
                raise ClusterError(
                    f"{who}one process listens nowhere, but received coordinator="
                    f"{self.coordinator!r}, addresses={self.addresses!r}. Use `Cluster.single()`."
                )
            return
        if self.coordinator is None:
            raise ClusterError(
                f"{who}{self.world_size} processes need a coordinator, but `coordinator` is None. "
                'Give rank 0\'s address, coordinator="host:port".'
            )
        split_address(self.coordinator, f"{who}`coordinator`")
        if self.addresses is not None:
            self._check_addresses(self.addresses, who)

    def _check_addresses(self, addresses: tuple[str, ...], who: str) -> None:
        if not isinstance(addresses, tuple) or len(addresses) != self.world_size:
            raise ClusterError(
                f"{who}`addresses` must be a tuple of one address per rank, "
                f"{self.world_size} of them, but is {addresses!r}. List every rank, or give None."
            )
        check_distinct(addresses, f"{who}`addresses`")
        if self.coordinator != addresses[0]:
            raise ClusterError(
                f"{who}`coordinator` must be rank 0's address, {addresses[0]!r}, but is "
                f"{self.coordinator!r}. Give coordinator=addresses[0]."
            )

    @classmethod
    def single(cls, source: str = NO_CLUSTER, job: str = "worker") -> Cluster:
        """Returns the cluster of one process.

        >>> Cluster.single().world_size
        1
        """
        return cls(rank=0, world_size=1, source=source, job=job)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def split_address(address: str, where: str = "An address") -> tuple[str, int]:
    """Splits "host:port" into the host, without the brackets of an IPv6 one, and the port.

    Args:
      address: A host's name, an IPv4 address or an IPv6 address in brackets, a colon and a port.
      where: Where the address was read, which begins the error's message.

    Raises:
      ClusterError: The address is malformed.

    >>> split_address("[fe80::1]:2222"), split_address("node-1.cluster:80")
    (('fe80::1', 2222), ('node-1.cluster', 80))
    """
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not colon or not _is_host(name, bracketed) or not _is_port(port):
        raise ClusterError(
            f"{where} must be host:port, with a port from 1 to {_MAX_PORT} and an IPv6 host in "
            f"brackets, but is {address!r}. {_fix(address)}"
        )
    return name, int(port)


def join_address(host: str, port: int) -> str:
    """Joins host and port to "host:port", with brackets around an IPv6 host.

    >>> join_address("::1", 2222), join_address("node-1", 2222)
    ('[::1]:2222', 'node-1:2222')
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    split_address(address)
    return address


def host_of(address: str) -> str:
    """Returns the host of "host:port", without the brackets of an IPv6 one.

    >>> host_of("[::1]:2222")
    '::1'
    """
    return split_address(address)[0]


def port_of(address: str) -> int:
    """Returns the port of "host:port".

    >>> port_of("node-1:2222")
    2222
    """
    return split_address(address)[1]


def cannot_listen(rank: int, port: int, error: Exception, why_there: str = "") -> ClusterError:
    """Returns the error of a rank that cannot listen on its own port.

    >>> str(cannot_listen(1, 2222, OSError("it is in use")))[:59]
    'Rank 1 must be able to listen on port 2222, but: it is in u'
    """
    return ClusterError(
        f"Rank {rank} must be able to listen on port {port}{why_there}, but: {error}. End the "
        f"process that uses the port (`ss -ltnp 'sport = :{port}'` names it), or give this rank "
        "another port on all hosts."
    )


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address is of the loopback interface.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "node-1", "10.0.0.1")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_distinct(addresses: tuple[str, ...], where: str) -> None:
    """Raises ClusterError unless each address is well formed and no two ranks have the same one."""
    first: dict[tuple[str, int], int] = {}
    for rank, address in enumerate(addresses):
        host, port = split_address(address, f"{where}, rank {rank}'s address,")
        known = first.setdefault((host.lower(), port), rank)
        if known != rank:
            raise ClusterError(
                f"{where} must give every rank its own address, but ranks {known} and {rank} both "
                f"have {address!r}. Give one of them another port."
            )


def _check_count(name: str, value: int, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ClusterError(
            f"`{name}` must be an int of at least {at_least}, but is {value!r}. "
            "Ranks count from 0, `world_size` counts all processes."
        )


def _is_host(name: str, bracketed: bool) -> bool:
    try:
        if bracketed:
            return bool(ipaddress.IPv6Address(name))
        if re.fullmatch(r"[0-9.]+", name):
            return bool(ipaddress.IPv4Address(name))
    except ValueError:
        return False
    return _HOST_NAME.fullmatch(name) is not None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= _MAX_PORT


def _fix(address: object) -> str:
    if not isinstance(address, str):
        return 'Write a string such as "node-1:23456".'
    if "://" in address:
        return f'Leave the scheme out: "{address.split("://", 1)[1]}".'
    if address.count(":") > 1 and "[" not in address:
        return 'Write an IPv6 address in brackets, "[fe80::1]:23456".'
    return 'Write it like "node-1:23456".'
