"""Phases and schedules."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import worlds

from tfdp import topology
from tfdp.topology import schedule


def transfer(source, target, start=0, stop=1, reduce=False):
    return topology.Transfer(source, target, range(start, stop), reduce)


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
    assert len({topology.Exchange((transfer(0, 1),)), topology.Exchange((transfer(0, 1),))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        phase.groups = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.phases = ()


def test_a_topology_without_a_schedule_cannot_be_made():
    class Nothing(topology.Topology):
        pass

    with pytest.raises(TypeError, match="schedule"):
        Nothing()


def test_a_transfer_to_oneself_is_refused():
    with pytest.raises(ValueError, match=r"must join two ranks.*source=target=3"):
        transfer(3, 3)


@pytest.mark.parametrize("chunks", [range(0), range(2, 1), range(-1, 1), range(0, 4, 2)])
def test_chunks_that_are_not_neighbours_are_refused(chunks):
    with pytest.raises(ValueError, match=r"range of neighbours.*Use range\(first, last \+ 1\)"):
        topology.Transfer(0, 1, chunks, reduce=True)


@pytest.mark.parametrize(
    "others",
    [
        [transfer(2, 1, 1, 3)],
        [transfer(2, 1, 1, 3, reduce=True)],
        [transfer(2, 1, 0, 9, reduce=True), transfer(3, 1, 5, 6, reduce=True)],
        [transfer(0, 1, 0, 3)],
    ],
)
def test_a_chunk_that_is_replaced_and_arrives_again_is_refused(others):
    for transfers in itertools.permutations([transfer(0, 1, 2, 4), *others]):
        with pytest.raises(ValueError, match=r"one arrival in a phase, but rank 1"):
            topology.Exchange(transfers)


def test_arrivals_side_by_side_and_sums_of_several_are_allowed():
    topology.Exchange((transfer(0, 1, 0, 2), transfer(2, 1, 2, 3), transfer(2, 0, 0, 2)))
    topology.Exchange((transfer(0, 1, 0, 2, reduce=True), transfer(2, 1, 1, 3, reduce=True)))


def test_a_rank_s_transfers_are_in_the_order_of_the_other_ranks_and_chunks():
    transfers = (transfer(3, 0), transfer(1, 0, 2, 3), transfer(1, 0, 1, 2), transfer(0, 2))
    phase = topology.Exchange(transfers)
    assert [(t.source, t.chunks.start) for t in phase.received_by(0)] == [(1, 1), (1, 2), (3, 0)]
    assert phase.sent_by(0) == (transfer(0, 2),)
    assert [t.chunks.start for t in phase.sent_by(1)] == [1, 2]
    assert phase.sent_by(2) == phase.received_by(3) == ()


def test_chunks_beyond_the_schedule_are_refused():
    with pytest.raises(ValueError, match=r"chunks=2, but chunk 2 is sent. Use chunks=3 or more"):
        topology.Schedule((topology.Exchange((transfer(0, 1, 2, 3),)),), chunks=2)


@given(st.integers(1, 64), st.integers(0, 1000))
def test_chunks_cover_the_buffer_in_nearly_equal_pieces(chunks, elements):
    schedule = topology.Schedule((), chunks)
    pieces = [schedule.slice_of(range(c, c + 1), elements) for c in range(chunks)]
    assert pieces[0].start == 0
    assert pieces[-1].stop == elements
    assert all(a.stop == b.start for a, b in itertools.pairwise(pieces))
    lengths = {piece.stop - piece.start for piece in pieces}
    assert max(lengths) - min(lengths) <= 1
    assert schedule.slice_of(range(chunks), elements) == slice(0, elements)


@given(worlds.any_hosts())
@worlds.few
def test_every_rank_is_in_the_group_of_its_host_in_ascending_order(hosts):
    groups = schedule.ranks_of_hosts(len(hosts), hosts)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(len(hosts)))
    assert [hosts[ranks[0]] for ranks in groups] == sorted(set(hosts))
    for ranks in groups:
        assert ranks == sorted(ranks)
        assert {hosts[rank] for rank in ranks} == {hosts[ranks[0]]}
    assert schedule.host_order(len(hosts), hosts) == [rank for ranks in groups for rank in ranks]
