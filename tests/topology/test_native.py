"""The engine's own all-reduce."""

from hypothesis import given
from hypothesis import strategies as st

from tfdp import topology


@given(st.integers(1, 64), st.integers(0, 2**40), st.data())
def test_it_is_one_phase_over_all_ranks_whatever_the_hosts_and_the_size(world_size, size, data):
    hosts = data.draw(st.lists(st.integers(0, 7), min_size=world_size, max_size=world_size))
    (phase,) = topology.Native().schedule(world_size, hosts, size).phases
    assert phase.groups == (tuple(range(world_size)),)


def test_two_of_them_are_equal():
    assert topology.Native() == topology.Native()
    assert hash(topology.Native()) == hash(topology.Native())
