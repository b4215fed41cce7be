"""Recursive halving, then doubling: the largest exchanges are inside hosts."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import worlds

from tfdp import topology


def first_exchange(hosts):
    """The pairs of the first halving step, and the folds before it."""
    schedule = topology.HalvingDoubling().schedule(len(hosts), hosts, 0)
    folds = len(hosts) != schedule.chunks
    fold = schedule.phases[0].transfers if folds else ()
    return schedule.phases[int(folds)].transfers, fold


def crossing(transfers, hosts):
    return sum(hosts[t.source] != hosts[t.target] for t in transfers)


@given(st.integers(1, 5), st.data())
@worlds.few
def test_on_hosts_of_even_size_the_largest_exchange_is_inside_hosts(exponent, data):
    pairs = data.draw(st.lists(st.integers(0, 6), min_size=2**exponent, max_size=2**exponent))
    hosts = data.draw(st.permutations(pairs * 2))
    transfers, fold = first_exchange(hosts)
    assert crossing(transfers, hosts) == 0
    assert fold == ()


@given(worlds.any_hosts().filter(lambda hosts: len(hosts) > 1))
@worlds.few
def test_on_any_hosts_only_a_host_s_odd_rank_crosses_in_the_largest_exchange(hosts):
    transfers, fold = first_exchange(hosts)
    out = {t.source for t in fold}
    left = collections.Counter(host for rank, host in enumerate(hosts) if rank not in out)
    assert crossing(transfers, hosts) == sum(size % 2 for size in left.values())


@given(worlds.any_hosts().filter(lambda hosts: len(hosts) > 1))
@worlds.few
def test_extra_ranks_fold_inside_their_host_while_there_is_a_partner(hosts):
    _, fold = first_exchange(hosts)
    able = sum(size // 2 for size in collections.Counter(hosts).values())
    assert len(fold) - crossing(fold, hosts) == min(len(fold), able)
    assert len({rank for t in fold for rank in (t.source, t.target)}) == 2 * len(fold)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("number", [2, 4, 8])
@given(data=st.data())
@worlds.few
def test_hosts_send_each_other_as_few_bytes_as_hosts_can(ranks, number, data):
    hosts = data.draw(st.permutations(list(range(number)) * ranks))
    schedule = topology.HalvingDoubling().schedule(len(hosts), hosts, 0)
    size = 64
    cost = topology.cost(schedule, hosts, size)
    assert set(cost.bytes_sent_between_hosts.values()) == {2 * (number - 1) * size // number}


def test_six_ranks_on_two_hosts_fold_one_on_each():
    _, fold = first_exchange([0, 1, 0, 1, 0, 1])
    assert {(t.source, t.target) for t in fold} == {(4, 0), (5, 1)}


def test_of_four_and_five_ranks_the_fifth_folds_so_that_no_pair_crosses():
    hosts = [0] * 4 + [1] * 5
    transfers, fold = first_exchange(hosts)
    assert [hosts[t.source] for t in fold] == [1]
    assert crossing(transfers, hosts) == 0
