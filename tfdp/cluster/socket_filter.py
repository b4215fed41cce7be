"""A program in Linux' kernel that decides who may connect to a port of another library.

TensorFlow's server listens on all interfaces, whatever its address is, and serves whoever
connects. The restriction needs no privilege.
"""

import ctypes
import ipaddress
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping, Sequence

from tfdp.cluster.spec import host_of, is_loopback
from tfdp.errors import ClusterError

PEERS = "TFDP_PEERS"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: tuple[Network, ...] = (
    ipaddress.IPv4Network("127.0.0.0/8"),
    ipaddress.IPv6Network("::1/128"),
)

_HOW_TO_LIST = (
    "List the addresses of all hosts, alike on all ranks (`hostname -I` prints those of one), or "
    "unset it."
)

# From Linux' headers; Python has no names for them.
_SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 26, 51

# Instructions of the classic Berkeley packet filter.
_LOAD_BYTE, _LOAD_WORD, _AND, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = (
    0x30,
    0x20,
    0x54,
    0x74,
    0x15,
    6,
)
_INSTRUCTION = struct.Struct("=HBBI")
_MOST_INSTRUCTIONS = 4096  # of a program (BPF_MAXINSNS)
_IP_HEADER = 0x100000000 - 0x100000  # begin of the IP header (SKF_NET_OFF)

# The values that programs return: how much of a packet is kept, and which socket gets it.
_NOTHING = 0
_FIRST, _SECOND = 0, 1


def admitted(
    addresses: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[Network, ...] | None:
    """Returns the networks whose hosts may connect to the ranks.

    These are this host alone if all ranks are on it, else the networks that `TFDP_PEERS` lists.

    Args:
      addresses: "host:port" of every rank.
      environ: Where `TFDP_PEERS` may be: addresses and networks, with commas or spaces between.

    Returns:
      The networks, among them always those of the loopback interface; None if everybody may
      connect.

    Raises:
      ClusterError: `TFDP_PEERS` lists something that is neither an address nor a network.

    >>> admitted(["a:1", "b:1"], {"TFDP_PEERS": "10.0.0.7, 10.1.0.0/16"})[2:]
    (IPv4Network('10.0.0.7/32'), IPv4Network('10.1.0.0/16'))
    >>> admitted(["127.0.0.1:1", "127.0.0.1:2"], {}) == LOOPBACK
    True
    """
    if all(is_loopback(host_of(address)) for address in addresses):
        return LOOPBACK
    words = [word for word in re.split(r"[\s,]+", environ.get(PEERS, "")) if word]
    try:
        named = [ipaddress.ip_network(word, strict=False) for word in words]
    except ValueError as error:
        raise ClusterError(
            f"`{PEERS}` must list IP addresses or networks, but is {environ[PEERS]!r}: {error}. "
            f"{_HOW_TO_LIST}"
        ) from error
    of_4 = [network for network in named if isinstance(network, ipaddress.IPv4Network)]
    of_6 = [network for network in named if isinstance(network, ipaddress.IPv6Network)]
    joined: list[Network] = [*ipaddress.collapse_addresses(of_4)]
    joined += ipaddress.collapse_addresses(of_6)
    return (*LOOPBACK, *joined) if joined else None


def check_admitted(rank: int, hosts: Sequence[str | None], networks: Sequence[Network]) -> None:
    """Raises ClusterError if a rank comes from outside `networks`, where it would wait in vain.

    Args:
      rank: The rank of this process.
      hosts: For each rank the IP address it came from, or None where that is not known.
      networks: The networks whose hosts are admitted.
    """
    for other, host in enumerate(hosts):
        if host is not None and not _is_in(networks, host):
            raise ClusterError(
                f"Rank {rank}: `{PEERS}` must list where all ranks come from, but rank {other} "
                f"comes from {host}, and it lists {', '.join(map(str, networks))}. {_HOW_TO_LIST}"
            )


def doorkeeper(networks: Sequence[Network], port: int) -> socket.socket:
    """Ensures that only hosts in `networks` reach what another library will open at `port`.

    1. A socket of ours listens there first, and lets others share the port (`SO_REUSEPORT`).
    2. A program of the kernel chooses between the sockets that share the port: a connection from an
       admitted host goes to the second socket, which is the library's, any other to ours.
    3. The packets of a connection to our socket are dropped: a host that is not admitted hears
       nothing.

    The library must open the port with `SO_REUSEPORT`, and in our socket's family (see
    `is_beside`).

    Returns:
      Our socket; the port is guarded until the socket is closed.

    Raises:
      ClusterError: The networks are too many for one program, which holds some 500 addresses.
      OSError: The port is taken, or the system is not Linux, or a sandbox that has no such
        programs.

    >>> with doorkeeper(LOOPBACK, 0) as door:
    ...     is_beside(door)
    True
    """
    program = _program(networks, _SECOND, _FIRST)
    if len(program) > _MOST_INSTRUCTIONS * _INSTRUCTION.size:
        raise ClusterError(
            f"`{PEERS}` must be short enough for the kernel, some 500 addresses, but lists "
            f"{len(networks)}. List the networks of the hosts, such as 10.1.0.0/16."
        )
    family = socket.AF_INET6 if _has_both_families() else socket.AF_INET
    door = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _attach(door, _SO_ATTACH_FILTER, _program((), _NOTHING, _NOTHING))
        door.bind(("", port))
        # Only now: before, the socket of another run could bind the port together with ours.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _attach(door, _SO_ATTACH_REUSEPORT_CBPF, program)
        door.listen(1)
    except AttributeError as error:  # a system without SO_REUSEPORT
        door.close()
        raise OSError(str(error)) from error
    except OSError:
        door.close()
        raise
    return door


def is_beside(door: socket.socket) -> bool:
    """Returns whether all sockets that listen at the port here are in the door's group."""
    # With a default timeout Python would make the sockets non-blocking for their owners, too.
    usual = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return _is_beside(door)
    finally:
        socket.setdefaulttimeout(usual)


def _is_beside(door: socket.socket) -> bool:
    port = door.getsockname()[1]
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            opened = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with opened:
            if opened.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            listens = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and opened.getsockname()[1] == port and opened.family != door.family:
                return False
    return True


def _has_both_families() -> bool:
    """Returns whether gRPC listens by IPv6 with IPv4 mapped into it: whether ::1 can be bound."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _attach(to: socket.socket, option: int, program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program)
    count = len(program) // _INSTRUCTION.size
    to.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", count, ctypes.addressof(buffer)))


def _is_in(networks: Sequence[Network], host: str) -> bool:
    return any(ipaddress.ip_address(host) in network for network in networks)


def _program(networks: Sequence[Network], inside: int, outside: int) -> bytes:
    """Returns a program that returns `inside` for packets from `networks`, else `outside`."""
    program = b""
    for network in networks:
        # Each test compares the IP version, then the words of the source address that the network
        # fixes.
        steps = [(_LOAD_BYTE, _IP_HEADER), (_SHIFT_RIGHT, 4), (_JUMP_IF_EQUAL, network.version)]
        begins = 12 if network.version == 4 else 8
        masks, values = network.netmask.packed, network.network_address.packed
        for at in range(0, len(masks), 4):
            (mask,), (value,) = (
                struct.unpack_from(">I", masks, at),
                struct.unpack_from(">I", values, at),
            )
            if mask:
                steps += [(_LOAD_WORD, _IP_HEADER + begins + at), (_AND, mask)]
                steps += [(_JUMP_IF_EQUAL, value)]
        for index, (code, value) in enumerate(steps):
            other = len(steps) - index if code == _JUMP_IF_EQUAL else 0
            program += _INSTRUCTION.pack(code, 0, other, value)
        program += _INSTRUCTION.pack(_RETURN, 0, 0, inside)
    return program + _INSTRUCTION.pack(_RETURN, 0, 0, outside)
