"""Only who may connect does, at a port that somebody else has opened."""

import ipaddress
import socket

import meeting
import pytest

from tfdp.cluster.admission import LOOPBACK, admit_only, admitted, check_admitted
from tfdp.cluster.rendezvous import meet
from tfdp.errors import ClusterError

ONE = (ipaddress.ip_network("127.0.0.1/32"),)


def answers(address, source=None):
    """Whether a connection from `source` stands; what is dropped is not heard of."""
    try:
        with socket.create_connection(address, 0.5, source):
            return True
    except TimeoutError:
        return False


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "both"])
def server(request):
    """A server of all interfaces, as TensorFlow's."""
    both = request.param == socket.AF_INET6
    if both and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("", 0), family=request.param, dualstack_ipv6=both) as listening:
        yield listening


def test_who_is_not_admitted_does_not_connect(server):
    port = server.getsockname()[1]
    assert answers(("127.0.0.1", port), ("127.0.0.2", 0))
    assert admit_only(ONE, port)
    assert answers(("127.0.0.1", port))
    assert not answers(("127.0.0.1", port), ("127.0.0.2", 0))
    if server.family == socket.AF_INET6:
        assert not answers(("::1", port))
    assert admit_only(LOOPBACK, port)
    assert answers(("127.0.0.1", port), ("127.0.0.2", 0))
    if server.family == socket.AF_INET6:
        assert answers(("::1", port))
        assert admit_only((ipaddress.ip_network("fd00::/8"), LOOPBACK[1]), port)
        assert answers(("::1", port))
        assert not answers(("127.0.0.1", port))


def test_who_had_connected_before_is_sent_away(server):
    port = server.getsockname()[1]
    with (
        socket.create_connection(("127.0.0.1", port), 5.0, ("127.0.0.2", 0)) as other,
        socket.create_connection(("127.0.0.1", port), 5.0) as one,
        server.accept()[0],
        server.accept()[0] as second,
    ):
        assert admit_only(ONE, port)
        assert other.recv(1) == b""
        second.sendall(b"x")
        assert one.recv(1) == b"x"


def test_a_port_that_nobody_listens_on_is_not_closed():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not admit_only(LOOPBACK, free.getsockname()[1])


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
        *(lambda c=c: meet(c, {}, meeting.no_difference, 10.0) for c in meeting.clusters(3))
    )
    assert [one.hosts for one in met] == [[None] + ["127.0.0.1"] * 2] + [["127.0.0.1"] * 3] * 2
