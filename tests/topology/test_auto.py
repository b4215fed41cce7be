"""The choice for each size: what the model predicts, whatever the links."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import worlds

from tfdp import topology

SECONDS = st.floats(0, 1e-2)
RATES = st.floats(1e6, 1e11)
LINKS = st.builds(
    topology.Links, SECONDS, RATES, SECONDS, RATES, SECONDS, st.one_of(st.none(), SECONDS)
)


@worlds.few
@given(worlds.any_hosts(12), LINKS, st.sampled_from([256, 4**8, 4**12, 4**15]))
def test_for_a_size_it_takes_what_is_predicted_to_be_fastest(hosts, links, size):
    auto = topology.decide(len(hosts), hosts, links)
    best = topology.choose(len(hosts), hosts, size, links)
    schedule = auto.schedule(len(hosts), hosts, size)
    predicted = topology.predict_seconds(schedule, hosts, size, links)
    assert predicted == pytest.approx(best.seconds, rel=1e-3, abs=1e-9)
    assert predicted <= 1.021 * best.table[0][1] + 1e-9


@worlds.few
@given(worlds.any_hosts(12), LINKS)
def test_every_size_has_one_rule_and_neighbours_differ(hosts, links):
    auto = topology.decide(len(hosts), hosts, links)
    limits = [rule.up_to_bytes for rule in auto.rules]
    assert limits[-1] is None
    assert limits[:-1] == sorted(set(limits[:-1]))
    chosen = [rule.topology for rule in auto.rules]
    assert all(a != b for a, b in itertools.pairwise(chosen))
    assert 2**20 <= auto.bucket_bytes <= 2**27


def test_many_steps_are_left_out_for_small_buffers_and_slow_links_for_large_ones():
    """As measured on two hosts of two ranks with 200 Mbit/s between them."""
    links = topology.Links(1e-3, 300e6, 1.5e-3, 24e6, 3e-4, 2e-4)
    auto = topology.decide(4, [0, 1, 0, 1], links)
    assert auto.topology_for(1000) == topology.Native()
    large = auto.schedule(4, [0, 1, 0, 1], 25_000_000)
    assert topology.cost(large, [0, 1, 0, 1], 25_000_000).max_bytes_between_hosts == 25_000_000


@pytest.mark.parametrize("operation", [0.0, 1e-5, 3e-4])
@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]], ids=str)
def test_what_an_operation_took_to_start_does_not_decide_between_equals(hosts, operation):
    links = topology.Links(1e-4, 5e8, 3e-4, 24e6, operation, 2e-4)
    auto = topology.decide(4, hosts, links)
    assert auto.topology_for(25_000_000) == topology.Hierarchical()


@pytest.mark.parametrize("limits", [[4], [None, None], [8, 4, None], [4, 4, None]])
def test_rules_that_do_not_cover_every_size_once_are_refused(limits):
    rules = tuple(topology.Rule(limit, topology.Ring()) for limit in limits)
    with pytest.raises(ValueError, match=r"`rules` must ascend"):
        topology.Auto(rules)


def test_without_a_decision_there_is_no_schedule():
    with pytest.raises(ValueError, match=r"must have rules to make a schedule.*decide"):
        topology.Auto().schedule(2, [0, 0], 8)
