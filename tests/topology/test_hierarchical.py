"""Reduce inside hosts first."""

import pytest
from hypothesis import given
from topology import interpreter, worlds

from tfdp import topology

OPTIMAL = (topology.Ring(), topology.Direct(), topology.Torus())


@pytest.mark.parametrize("inner", [*OPTIMAL, topology.HalvingDoubling(), topology.Tree()], ids=repr)
@pytest.mark.parametrize("outer", OPTIMAL, ids=repr)
def test_each_host_sends_the_fewest_bytes_whatever_the_sizes_and_the_listing(inner, outer):
    @given(worlds.any_hosts(24))
    @worlds.few
    def check(hosts):
        schedule = topology.Hierarchical(inner, outer).schedule(len(hosts), hosts, 0)
        h, size = len(set(hosts)), schedule.chunks
        cost = topology.cost(schedule, hosts, size)
        assert set(cost.bytes_sent_between_hosts.values()) == {2 * (h - 1) * size // h}
        assert set(cost.bytes_received_between_hosts.values()) == {2 * (h - 1) * size // h}

    check()


@given(worlds.equal_hosts())
@worlds.few
def test_on_hosts_of_one_size_steps_add_up_and_ranks_send_the_bandwidth_bound(hosts):
    n, h = len(hosts), len(set(hosts))
    rule = topology.Hierarchical(topology.Ring(), topology.Ring())
    schedule = rule.schedule(n, hosts, 0)
    cost = topology.cost(schedule, hosts, n)
    assert cost.steps == 2 * (n // h - 1) + 2 * (h - 1)
    assert set(cost.bytes_sent) == {2 * (n - 1)}


def test_on_one_host_it_is_the_inner_and_with_one_rank_per_host_the_outer():
    rule = topology.Hierarchical(topology.Tree(), topology.Ring())
    assert rule.schedule(5, [3] * 5, 0) == topology.Tree().schedule(5, [3] * 5, 0)
    assert rule.schedule(5, range(5), 0) == topology.Ring().schedule(5, range(5), 0)


def test_hosts_of_two_and_three_ranks_meet_in_four_pieces():
    schedule = topology.Hierarchical().schedule(5, [0, 0, 1, 1, 1], 0)
    between = schedule.phases[1].transfers
    pairs = {frozenset((t.source, t.target)) for t in between}
    assert pairs == {frozenset(pair) for pair in [(0, 2), (0, 3), (1, 3), (1, 4)]}
    pieces = {(t.chunks.start / schedule.chunks, t.chunks.stop / schedule.chunks) for t in between}
    assert min(pieces)[0] == 0
    assert max(pieces)[1] == 1


def test_a_hierarchy_may_be_the_outer_one():
    rule = topology.Hierarchical(outer=topology.Hierarchical(outer=topology.Tree()))
    results = interpreter.run(rule.schedule(6, [0, 1, 2] * 2, 0), [[float(r)] for r in range(6)])
    assert [float(result[0]) for result in results] == [15.0] * 6


@pytest.mark.parametrize("name", ["inner", "outer"])
def test_native_and_names_are_refused(name):
    with pytest.raises(ValueError, match=rf"`{name}` must be made of exchanges.*Native\(\)"):
        topology.Hierarchical(**{name: topology.Native()})
    with pytest.raises(TypeError, match=rf"`{name}` must be a `tfdp.topology.Topology`.*'ring'"):
        topology.Hierarchical(**{name: "ring"})
