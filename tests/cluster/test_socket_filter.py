"""Only who may connect does, at a port that somebody else has opened."""

import ipaddress
import os
import socket

import meeting
import pytest

from tfdp.cluster import socket_filter
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.socket_filter import LOOPBACK, admitted, check_admitted, doorkeeper, is_beside
from tfdp.errors import ClusterError

OTHER_SOURCE = ("127.0.0.2", 0)
ONE = (ipaddress.ip_network("127.0.0.1/32"),)


def answers(address, source=None):
    """Whether a connection from `source` stands; what is dropped is not heard of."""
    try:
        with socket.create_connection(address, 0.5, source):
            return True
    except TimeoutError:
        return False


def server(door):
    """Another library's, of all interfaces, beside the doorkeeper."""
    other = socket.socket(door.family)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if door.family == socket.AF_INET6:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    other.bind(("", door.getsockname()[1]))
    other.listen()
    return other


@pytest.fixture(params=["both families", "IPv4"])
def family(request, monkeypatch):
    """The sockets' family: that of gRPC where the loopback interface has IPv6, or has not."""
    both = socket_filter._has_both_families()
    if request.param == "IPv4":
        monkeypatch.setattr(socket_filter, "_has_both_families", lambda: False)
    elif not both:
        pytest.skip("no IPv6 here")
    return socket.AF_INET6 if request.param == "both families" else socket.AF_INET


def test_a_list_that_the_kernel_cannot_hold_is_refused():
    peers = " ".join(f"10.0.{i // 128}.{i % 128 * 2}" for i in range(700))
    with pytest.raises(ClusterError, match=r"some 500 addresses.*lists 702.*10\.1\.0\.0/16"):
        doorkeeper(admitted(["a:1", "b:1"], {"TFDP_PEERS": peers}), 0)
    all_of_them = " ".join(f"10.0.0.{i}" for i in range(256))
    assert len(admitted(["a:1", "b:1"], {"TFDP_PEERS": all_of_them})) == 3


def test_a_default_timeout_leaves_the_sockets_of_others_blocking():
    usual = socket.getdefaulttimeout()
    one, other = socket.socketpair()
    with doorkeeper(LOOPBACK, 0) as door, one, other:
        socket.setdefaulttimeout(5.0)
        try:
            is_beside(door)
            assert os.get_blocking(one.fileno()) and socket.getdefaulttimeout() == 5.0
        finally:
            socket.setdefaulttimeout(usual)


def test_who_is_not_admitted_never_connects(family):
    with doorkeeper(ONE, 0) as door:
        port = door.getsockname()[1]
        assert not answers(("127.0.0.1", port), OTHER_SOURCE)  # before anything listens behind it
        with server(door) as behind:
            assert door.family == family
            assert is_beside(door)
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port), 5.0) as one:
                    behind.accept()[0].close()
                    assert one.recv(1) == b""
            assert not answers(("127.0.0.1", port), OTHER_SOURCE)
            if family == socket.AF_INET6:
                assert not answers(("::1", port))


@pytest.mark.skipif(not socket_filter._has_both_families(), reason="no IPv6 here")
def test_networks_of_both_families_are_told_apart():
    networks = (ipaddress.ip_network("fd00::/8"), LOOPBACK[1])
    with doorkeeper(networks, 0) as door, server(door):
        port = door.getsockname()[1]
        assert answers(("::1", port))
        assert not answers(("127.0.0.1", port))
    with doorkeeper(LOOPBACK, 0) as door, server(door):
        port = door.getsockname()[1]
        assert answers(("127.0.0.1", port), OTHER_SOURCE)
        assert answers(("::1", port))


@pytest.mark.skipif(not socket_filter._has_both_families(), reason="no IPv6 here")
def test_a_server_that_is_not_in_the_doorkeepers_group_is_found(monkeypatch):
    with doorkeeper(LOOPBACK, 0) as door, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("", door.getsockname()[1]))
        other.listen()
        assert not is_beside(door)


def test_a_port_that_is_taken_has_no_second_doorkeeper(family):
    with doorkeeper(ONE, 0) as door, pytest.raises(OSError, match="in use"):
        doorkeeper(ONE, door.getsockname()[1])


def test_all_ranks_must_come_from_where_peers_are_listed():
    addresses = ("node-1:2222", "node-2:2222")
    assert admitted(addresses, {}) is None
    assert admitted(addresses, {"TFDP_PEERS": " "}) is None
    networks = admitted(addresses, {"TFDP_PEERS": "10.0.0.1 10.0.0.2,\nfd00::/64"})
    check_admitted(0, [None, "10.0.0.2"], networks)
    check_admitted(1, ["fd00::5", "127.0.0.1"], networks)
    with pytest.raises(
        ClusterError, match=r"Rank 1: `TFDP_PEERS` must.*rank 0 comes from 10.0.0.3"
    ):
        check_admitted(1, ["10.0.0.3", "10.0.0.2"], networks)
    with pytest.raises(ClusterError, match=r"`TFDP_PEERS` must list.*'node-1'"):
        admitted(addresses, {"TFDP_PEERS": "node-1"})


def test_each_rank_learns_where_the_others_come_from():
    met = meeting.on_all(
        *(lambda c=c: meet(c, {}, meeting.no_difference, 60.0) for c in meeting.clusters(3))
    )
    assert [one.hosts for one in met] == [[None] + ["127.0.0.1"] * 2] + [["127.0.0.1"] * 3] * 2
