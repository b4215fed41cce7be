"""The engine's own all-reduce."""

from hypothesis import given
from hypothesis import strategies as st
from topology import worlds

from tfdp import topology


@given(worlds.any_hosts(), st.integers(0, 2**40))
@worlds.few
def test_it_is_one_phase_over_all_ranks_whatever_the_hosts_and_the_size(hosts, size):
    (phase,) = topology.Native().schedule(len(hosts), hosts, size).phases
    assert phase.groups == (tuple(range(len(hosts))),)
