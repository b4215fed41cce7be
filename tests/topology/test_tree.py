"""Two mirrored binary trees."""

import collections

from hypothesis import given
from topology import worlds

from tfdp import topology


def edges_of(hosts, chunk):
    schedule = topology.Tree().schedule(len(hosts), hosts, 0)
    return [
        (t.target, t.source)
        for phase in schedule.exchanges()
        for t in phase.transfers
        if t.reduce and t.chunks.start == chunk
    ]


@given(worlds.any_hosts())
@worlds.few
def test_each_half_has_a_binary_tree_with_one_edge_less_between_hosts_than_hosts(hosts):
    for chunk in range(2):
        edges = edges_of(hosts, chunk)
        assert len({child for _, child in edges}) == len(edges) == len(hosts) - 1
        children = collections.Counter(parent for parent, _ in edges)
        assert max(children.values(), default=0) <= 2
        between = [(a, b) for a, b in edges if hosts[a] != hosts[b]]
        assert len(between) == len(set(hosts)) - 1


@given(worlds.any_hosts())
@worlds.few
def test_a_rank_has_two_children_in_both_trees_together(hosts):
    children = collections.Counter(a for chunk in range(2) for a, _ in edges_of(hosts, chunk))
    assert max(children.values(), default=0) <= 2


@given(worlds.any_hosts())
@worlds.few
def test_a_host_sends_others_at_most_twice_the_buffer(hosts):
    schedule = topology.Tree().schedule(len(hosts), hosts, 0)
    assert topology.cost(schedule, hosts, 2).max_bytes_between_hosts <= 4
