"""Phases and schedules."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp import topology


@given(st.permutations(range(8)), st.sets(st.integers(1, 7)), st.integers(0, 8))
def test_every_rank_is_in_its_own_group_or_sits_out(ranks, cuts, kept):
    ranks = ranks[:kept]
    bounds = [0, *sorted(cut for cut in cuts if cut < kept), kept]
    groups = tuple(tuple(ranks[a:b]) for a, b in itertools.pairwise(bounds))
    phase = topology.AllReduce(groups)
    for rank in range(8):
        if rank in ranks:
            assert rank in phase.group_of(rank)
            assert phase.group_of(rank) in groups
        else:
            assert phase.group_of(rank) is None


@pytest.mark.parametrize("groups", [((0, 1), (1, 2)), ((0, 0),)])
def test_groups_that_share_a_rank_are_refused(groups):
    with pytest.raises(ValueError, match=r"must be disjoint.*phases of their own"):
        topology.AllReduce(groups)


def test_phases_and_schedules_are_frozen_and_compare_by_value():
    phase = topology.AllReduce(((0, 1),))
    schedule = topology.Schedule((phase,))
    assert schedule == topology.Schedule((topology.AllReduce(((0, 1),)),))
    assert len({phase, topology.AllReduce(((0, 1),))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        phase.groups = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.phases = ()


def test_a_topology_without_a_schedule_cannot_be_made():
    class Nothing(topology.Topology):
        pass

    with pytest.raises(TypeError, match="schedule"):
        Nothing()
