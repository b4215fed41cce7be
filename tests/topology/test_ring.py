"""The ring goes host by host."""

import collections

from hypothesis import given
from topology import worlds

from tfdp import topology


@given(worlds.any_hosts())
@worlds.few
def test_each_rank_has_one_next_and_each_host_is_entered_once(hosts):
    schedule = topology.Ring().schedule(len(hosts), hosts, 0)
    edges = {(t.source, t.target) for phase in schedule.exchanges() for t in phase.transfers}
    assert len(edges) == (len(hosts) if len(hosts) > 1 else 0)
    entered = collections.Counter(hosts[b] for a, b in edges if hosts[a] != hosts[b])
    several = len(set(hosts)) > 1
    assert entered == (dict.fromkeys(hosts, 1) if several else {})
