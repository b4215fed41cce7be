"""Who may connect to a port that another library has opened: a filter in Linux' kernel.

TensorFlow's server listens on all interfaces, whatever its address is, and serves whoever connects.
The listening socket is this process' own, though, and may be given a filter that drops what comes
from elsewhere before a connection stands (`SO_ATTACH_FILTER`; it needs no privilege).
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence

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

_SO_ATTACH_FILTER = 26  # from Linux' headers; Python has no name for it

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
_IP_HEADER = 0x100000000 - 0x100000  # where it begins, whatever is before it (SKF_NET_OFF)
_WHOLE_PACKET, _NOTHING = 0xFFFFFFFF, 0


def admitted(
    addresses: Sequence[str], environ: Mapping[str, str] = os.environ
) -> tuple[Network, ...] | None:
    """Who may connect to the ranks: this host alone if all are on it, or what `TFDP_PEERS` lists.

    Args:
      addresses: "host:port" of every rank.
      environ: Where `TFDP_PEERS` may be: addresses and networks, with commas or spaces between.

    Returns:
      Networks, those of the loopback interface always among them; None for everybody.

    Raises:
      ClusterError: `TFDP_PEERS` lists something else.

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
    return (*LOOPBACK, *named) if named else None


def check_admitted(rank: int, hosts: Sequence[str | None], networks: Sequence[Network]) -> None:
    """Raises ClusterError if a rank comes from elsewhere than `networks`: it would wait in vain.

    Args:
      rank: This process'.
      hosts: For each rank the IP address it came from, or None where that is not known.
      networks: Who is admitted.
    """
    for other, host in enumerate(hosts):
        if host is not None and not _is_in(networks, host):
            raise ClusterError(
                f"Rank {rank}: `{PEERS}` must list where all ranks come from, but rank {other} "
                f"comes from {host}, and it lists {', '.join(map(str, networks))}. {_HOW_TO_LIST}"
            )


def admit_only(networks: Sequence[Network], port: int) -> bool:
    """Lets nobody but `networks` connect to a port that this process listens on.

    Connections from elsewhere that stand already are ended.

    Returns:
      Whether it could be done: False outside Linux, or where nothing of this process listens there.

    >>> with socket.create_server(("", 0)) as server:
    ...     admit_only(LOOPBACK, server.getsockname()[1])
    True
    """
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(_program(networks))
    count = len(program.raw) // _INSTRUCTION.size
    attached = False
    for opened in _sockets(port):
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            pointer = struct.pack("HP", count, ctypes.addressof(program))
            opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
            attached = True
    for opened in _sockets(port):
        if not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            _end_unless_in(networks, opened)
    return attached


def _sockets(port: int) -> Iterator[socket.socket]:
    """This process' sockets at its own TCP port `port`."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            opened = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        with opened:
            ip = opened.family in (socket.AF_INET, socket.AF_INET6)
            if ip and opened.type == socket.SOCK_STREAM and opened.getsockname()[1] == port:
                yield opened


def _end_unless_in(networks: Sequence[Network], opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected
        if not _is_in(networks, opened.getpeername()[0].removeprefix("::ffff:")):
            opened.shutdown(socket.SHUT_RDWR)


def _is_in(networks: Sequence[Network], host: str) -> bool:
    return any(ipaddress.ip_address(host) in network for network in networks)


def _program(networks: Sequence[Network]) -> bytes:
    """Instructions that keep a packet if its source is in one of `networks`, and drop it else."""
    program = b""
    for network in networks:
        # The version, then the words of the source's address of which the network fixes bits.
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
        program += _INSTRUCTION.pack(_RETURN, 0, 0, _WHOLE_PACKET)
    return program + _INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING)
