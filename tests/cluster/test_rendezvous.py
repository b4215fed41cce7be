"""All ranks meet before TensorFlow starts, or all hear why not."""

import socket

import meeting
import pytest

from tfdp.cluster.rendezvous import meet
from tfdp.cluster.rendezvous_server import Gathering
from tfdp.cluster.socket_filter import LOOPBACK, doorkeeper
from tfdp.cluster.spec import Cluster, port_of
from tfdp.errors import ClusterError


@pytest.mark.parametrize("world_size", [2, 5])
def test_every_rank_learns_what_all_said(world_size):
    described = meeting.clusters(world_size)
    met = meeting.on_all(
        *(lambda c=c: meet(c, {"word": c.rank}, meeting.no_difference, 60.0) for c in described)
    )
    for one in met:
        assert [said["word"] for said in one.introductions] == list(range(world_size))
        assert one.addresses == list(described[0].addresses)


def test_ranks_without_fixed_addresses_choose_ports_of_their_own():
    described = meeting.clusters(3, fixed_addresses=False)
    met = meeting.on_all(*(lambda c=c: meet(c, {}, meeting.no_difference, 60.0) for c in described))
    assert met[0].addresses == met[1].addresses == met[2].addresses
    assert met[0].addresses[0] == described[0].coordinator
    assert len(set(met[0].addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in met[0].addresses)


@pytest.mark.parametrize("fixed_addresses", [True, False])
def test_the_port_of_a_rank_is_kept_for_tensorflow_until_it_listens(fixed_addresses):
    described = meeting.clusters(2, fixed_addresses)
    met = meeting.on_all(*(lambda c=c: meet(c, {}, meeting.no_difference, 60.0) for c in described))
    address = ("", port_of(met[1].addresses[1]))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(address)
    with socket.create_server(address):  # with REUSEADDR, as TensorFlow's
        pass
    doorkeeper(LOOPBACK, address[1]).close()
    for each in met:
        each.close_port()
    with socket.socket() as other:
        other.bind(address)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("fixed_addresses", [True, False])
def test_ranks_meet_over_ipv6(fixed_addresses):
    described = meeting.clusters(2, fixed_addresses, host="[::1]")
    met = meeting.on_all(*(lambda c=c: meet(c, {}, meeting.no_difference, 60.0) for c in described))
    assert all(address.startswith("[::1]:") for address in met[1].addresses)


def test_ranks_may_come_in_any_order_and_strangers_are_sent_away():
    first, second = meeting.clusters(2)
    port = int(first.coordinator.rsplit(":", 1)[1])

    def stranger_then_second():
        with meeting.connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n")
        return meet(second, {}, meeting.no_difference, 60.0)

    met = meeting.on_all(lambda: meet(first, {}, meeting.no_difference, 60.0), stranger_then_second)
    assert [len(one.introductions) for one in met] == [2, 2]


def test_the_ranks_that_do_not_come_are_named_to_all_that_came(monkeypatch):
    taken_in = Gathering._take_in

    def the_last_in_time(self, *arguments):
        taken_in(self, *arguments)
        self._over.set_exception(TimeoutError())

    monkeypatch.setattr(Gathering, "_take_in", the_last_in_time)
    first, second, _ = meeting.clusters(3)
    errors = meeting.on_all(
        lambda: meet(first, {}, meeting.no_difference, 60.0),
        lambda: meet(second, {}, meeting.no_difference, 60.0),
    )
    for error in errors:
        assert isinstance(error, ClusterError)
        assert "rank 2 of 3 did not connect" in str(error)
        assert first.addresses[2] in str(error)
        assert "startup_timeout_seconds" in str(error)


def test_the_time_in_which_nobody_comes_is_told():
    first, *_ = meeting.clusters(3)
    with pytest.raises(ClusterError, match=r"within 0\.5 s, but ranks 1, 2 of 3 did not connect"):
        meet(first, {}, meeting.no_difference, 0.5)


def test_a_rank_0_that_does_not_answer_is_named_with_its_address():
    _, second = meeting.clusters(2)
    with pytest.raises(ClusterError) as caught:
        meet(second, {}, meeting.no_difference, 0.5)
    assert "Rank 1: rank 0 must answer" in str(caught.value)
    assert second.coordinator in str(caught.value)
    assert "TF_CONFIG" in str(caught.value)


def test_a_host_that_does_not_exist_is_named():
    cluster = Cluster(1, 2, "no-such-host.invalid:2222", None, "MPI (PMI_RANK)")
    with pytest.raises(ClusterError, match=r"no-such-host\.invalid:2222"):
        meet(cluster, {}, meeting.no_difference, 0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_in_use_is_named(rank):
    described = meeting.clusters(2)
    port = int(described[0].addresses[rank].rsplit(":", 1)[1])
    with socket.socket() as other:
        other.bind(("", port))
        other.listen()
        with pytest.raises(ClusterError) as caught:
            meet(described[rank], {}, meeting.no_difference, 0.5)
    assert f"Rank {rank} must be able to listen on port {port}" in str(caught.value)
    assert "another port" in str(caught.value)


def test_two_processes_with_one_rank_are_an_error_on_all():
    first, second, _ = meeting.clusters(3)
    free = Cluster(1, 3, second.coordinator, None, "TF_CONFIG")
    errors = meeting.on_all(
        lambda: meet(first, {}, meeting.no_difference, 60.0),
        lambda: meet(second, {}, meeting.no_difference, 60.0),
        lambda: meet(free, {}, meeting.no_difference, 60.0),
    )
    assert all("two say that they are rank 1" in str(error) for error in errors)


def test_ranks_that_know_different_clusters_are_an_error_on_both():
    first, second = meeting.clusters(2)
    other = Cluster(1, 3, second.coordinator, None, "Slurm (SLURM_PROCID)")
    errors = meeting.on_all(
        lambda: meet(first, {}, meeting.no_difference, 60.0),
        lambda: meet(other, {}, meeting.no_difference, 60.0),
    )
    assert all("3 ranks and rank 0 says 2" in str(error) for error in errors)


def test_what_the_comparison_says_reaches_all_ranks():
    described = meeting.clusters(2)
    errors = meeting.on_all(
        *(lambda c=c: meet(c, {}, lambda said: "they differ", 60.0) for c in described)
    )
    assert [str(error) for error in errors] == ["Rank 0: they differ", "Rank 1: they differ"]
