"""The cluster's own rules, and addresses."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.cluster import Cluster, host_of, join_address, port_of, split_address
from tfdp.errors import ClusterError

TWO = ("a:2000", "b:2000")


def test_one_process_has_no_coordinator():
    cluster = Cluster.single()
    assert (cluster.rank, cluster.world_size) == (0, 1)
    assert cluster.coordinator is None
    assert cluster.addresses is None
    assert cluster.source == "no cluster in the environment"
    assert cluster.job == "worker"


def test_a_cluster_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cluster.single().rank = 1


def test_a_cluster_prints_its_rank_and_source():
    assert str(Cluster(1, 2, "a:2000", TWO, "TF_CONFIG")) == "rank 1 of 2 (TF_CONFIG)"


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"rank": 2}, ["`rank`", "below `world_size`=2", "is 2"]),
        ({"rank": -1}, ["`rank`", "at least 0", "-1"]),
        ({"rank": True}, ["`rank`", "int", "True"]),
        ({"rank": "1"}, ["`rank`", "int", "'1'"]),
        ({"world_size": 0}, ["`world_size`", "at least 1", "is 0"]),
        ({"coordinator": None}, ["Rank 1", "`coordinator` is None", 'coordinator="host:port"']),
        ({"coordinator": "a"}, ["Rank 1", "`coordinator`", "host:port", "'a'"]),
        ({"coordinator": "b:2000"}, ["Rank 1", "rank 0's address, 'a:2000'", "'b:2000'"]),
        ({"addresses": ("a:2000",)}, ["Rank 1", "one address per rank", "('a:2000',)"]),
        ({"addresses": ["a:2000", "b:2000"]}, ["Rank 1", "tuple", "['a:2000', 'b:2000']"]),
        ({"addresses": ("a:2000", "a:2000")}, ["Rank 1", "ranks 0 and 1", "another port"]),
        ({"addresses": ("a:2000", "A:2000")}, ["Rank 1", "ranks 0 and 1", "another port"]),
        ({"addresses": ("a:2000", "b")}, ["Rank 1", "rank 1's address", "'b'"]),
        ({"rank": 0, "world_size": 1}, ["Rank 0", "listens nowhere", "Cluster.single()"]),
    ],
)
def test_a_cluster_that_contradicts_itself_says_how_to_mend_it(values, parts):
    right = {"rank": 1, "world_size": 2, "coordinator": "a:2000", "addresses": TWO}
    Cluster(**right)
    with pytest.raises(ClusterError) as error:
        Cluster(**right | values)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        (
            "job-worker-0.team-a.svc.cluster.local:2222",
            "job-worker-0.team-a.svc.cluster.local",
            2222,
        ),
        ("gpu_a:80", "gpu_a", 80),
        ("[::1]:2222", "::1", 2222),
        ("[fe80::1%eth0]:2222", "fe80::1%eth0", 2222),
    ],
)
def test_an_address_splits_into_host_and_port_and_joins_again(address, host, port):
    assert (host_of(address), port_of(address)) == split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("", "node-1:23456"),
        ("host", "node-1:23456"),
        ("host:", "node-1:23456"),
        (":2222", "node-1:23456"),
        ("host:0", "port from 1 to 65535"),
        ("host:65536", "port from 1 to 65535"),
        ("host:http", "node-1:23456"),
        ("host:²", "node-1:23456"),
        ("a host:2222", "node-1:23456"),
        ("-a:2222", "node-1:23456"),
        ("300.0.0.1:2222", "node-1:23456"),
        ("[node]:2222", "IPv6 host in brackets"),
        ("::1:2222", "in brackets"),
        ("grpc://host:2222", 'Leave the scheme out: "host:2222"'),
        (("host", 2222), "string"),
        (None, "string"),
    ],
)
def test_a_malformed_address_is_shown_with_its_fix(address, fix):
    with pytest.raises(ClusterError) as error:
        split_address(address, "`X`")
    assert "`X` must be host:port" in str(error.value)
    assert repr(address) in str(error.value)
    assert fix in str(error.value)


def test_joining_checks_the_host_and_the_port():
    with pytest.raises(ClusterError, match="must be host:port"):
        join_address("a b", 2222)
    with pytest.raises(ClusterError, match="must be host:port"):
        join_address("a", 0)


@given(
    host=st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.from_regex(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?(\.[a-z][a-z0-9]{0,9}){0,3}", fullmatch=True),
    ),
    port=st.integers(1, 65535),
)
def test_splitting_undoes_joining(host, port):
    assert split_address(join_address(host, port)) == (host, port)
