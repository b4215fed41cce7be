"""Everyone to everyone."""

from hypothesis import given
from hypothesis import strategies as st
from topology import worlds

from tfdp import topology


@given(st.integers(2, 64))
@worlds.few
def test_each_rank_sends_to_every_other_in_both_steps(world_size):
    scatter, gather = topology.Direct().schedule(world_size, [0] * world_size, 0).phases
    pairs = {(a, b) for a in range(world_size) for b in range(world_size) if a != b}
    for phase in (scatter, gather):
        assert len(phase.transfers) == len(pairs)
        assert {(t.source, t.target) for t in phase.transfers} == pairs
    assert all(t.reduce for t in scatter.transfers)
    assert not any(t.reduce for t in gather.transfers)
