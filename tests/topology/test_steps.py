"""Ranks in the order of their hosts."""

from hypothesis import given
from topology import worlds

from tfdp.topology import steps


@given(worlds.any_hosts())
@worlds.few
def test_every_rank_is_in_the_group_of_its_host_in_ascending_order(hosts):
    groups = steps.ranks_of_hosts(len(hosts), hosts)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(len(hosts)))
    assert [hosts[ranks[0]] for ranks in groups] == sorted(set(hosts))
    for ranks in groups:
        assert ranks == sorted(ranks)
        assert {hosts[rank] for rank in ranks} == {hosts[ranks[0]]}
    assert steps.host_order(len(hosts), hosts) == [rank for ranks in groups for rank in ranks]
