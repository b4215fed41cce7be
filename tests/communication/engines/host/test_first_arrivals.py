"""Sums over the ranks that come first: who is in them, the same bits on all, and what is kept."""

import threading

import numpy as np
import pytest
from communication.engines.host.memory_transport import Memory, MemoryTransport

from tfdp.communication.engines.host import Driver, first_arrivals
from tfdp.communication.engines.host.first_arrivals import FirstArrivals


class Ranks:
    """Ranks in threads of this process."""

    def __init__(self, world_size, count, most_kept_bytes=2**20):
        memory = Memory()
        self.of_rank = [
            FirstArrivals(
                MemoryTransport(memory, rank), rank, [0] * world_size, count, most_kept_bytes
            )
            for rank in range(world_size)
        ]
        self.drivers = [Driver() for _ in range(world_size)]
        self.size = world_size

    def begin(self, rank, value, rows=2, elements=3):
        """Begins a sum of a rank, and gives a function that waits for it."""
        own = np.full(elements, value, np.float32)
        begun = self.of_rank[rank].sum(own, rows, 2 * self.size)
        done, errors = threading.Event(), []

        def when_done(error):
            errors.append(error)
            done.set()

        self.drivers[rank].hand_over(begun, "a sum", when_done)

        def wait():
            assert done.wait(60)
            assert errors == [None]
            return begun.result

        wait.is_done = done.is_set
        return wait

    def wait_until_closed(self, rank):
        """Waits until the rank hears that its next sum was closed."""
        poll = threading.Event()
        for _ in range(6000):
            if self.of_rank[rank].is_closed():
                return
            poll.wait(0.01)
        raise AssertionError("the sum was not closed")

    def end(self):
        for each in self.of_rank:
            each.end()


@pytest.fixture
def ranks(request):
    made = Ranks(*request.param)
    yield made
    made.end()


def members(ranks, rank):
    return [each.members for each in ranks.of_rank[rank].closed]


@pytest.mark.parametrize("ranks", [(3, 2)], indirect=True)
@pytest.mark.parametrize("elements", [3, 300_000])  # one step, or several with slices
@pytest.mark.parametrize("late", [0, 1, 2])
def test_those_that_come_first_are_summed_and_the_late_one_takes_their_sum(ranks, late, elements):
    others = [rank for rank in range(3) if rank != late]
    for turn in range(3):
        waits = [ranks.begin(rank, 0.1 + rank + turn, elements=elements) for rank in others]
        found = [wait() for wait in waits]
        expected = np.full(elements, others[0] + np.float32(0.1) + turn, np.float32)
        expected += np.full(elements, 0.1 + others[1] + turn, np.float32)
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)
        ranks.wait_until_closed(late)
        own = ranks.begin(late, 100.0, elements=elements)()
        assert own.tobytes() == found[0].tobytes() == found[1].tobytes()
    assert members(ranks, 0) == members(ranks, 1) == members(ranks, 2) == [tuple(others)] * 3
    (one, *_) = ranks.of_rank[late].closed
    assert (one.rows, one.all_rows) == (4, 6)
    assert ranks.of_rank[late].dropped_rows == 3 * 2


@pytest.mark.parametrize("ranks", [(4, 3)], indirect=True)
def test_a_rank_may_be_several_sums_behind(ranks):
    """The others go on; it takes all sums in order, and is in one again when it has caught up."""
    sums = []
    for turn in range(5):
        waits = [ranks.begin(rank, rank + turn) for rank in (0, 1, 3)]
        sums.append([wait() for wait in waits][-1])
    for turn in range(5):
        ranks.wait_until_closed(2)
        np.testing.assert_array_equal(ranks.begin(2, -1.0)(), sums[turn])
    assert not ranks.of_rank[2].is_closed()
    first = ranks.begin(2, 2.0), ranks.begin(0, 0.0), ranks.begin(3, 3.0)
    assert [wait()[0] for wait in first] == [5.0] * 3
    ranks.wait_until_closed(1)
    assert ranks.begin(1, 100.0)()[0] == 5.0
    assert members(ranks, 1) == members(ranks, 2) == [(0, 1, 3)] * 5 + [(0, 2, 3)]


@pytest.mark.parametrize("ranks", [(2, 1)], indirect=True)
def test_one_rank_may_be_enough(ranks):
    assert ranks.begin(1, 5.0)()[0] == 5.0
    ranks.wait_until_closed(0)
    assert ranks.begin(0, 1.0)()[0] == 5.0
    assert members(ranks, 0) == [(1,)]


@pytest.mark.parametrize("ranks", [(3, 1)], indirect=True)
def test_a_sum_has_examples_if_there_are_some(ranks, monkeypatch):
    has_rows, has_come = first_arrivals._Arbiter._has_rows, threading.Event()

    def noted(arbiter):
        has_come.set()  # it is asked when ranks have come
        return has_rows(arbiter)

    monkeypatch.setattr(first_arrivals._Arbiter, "_has_rows", noted)
    first = ranks.begin(2, 0.0, rows=0)
    assert has_come.wait(60) and not first.is_done()
    ranks.begin(0, 1.0, rows=6)()
    assert first()[0] == 1.0
    ranks.wait_until_closed(1)
    assert ranks.begin(1, 0.0, rows=0)()[0] == 1.0
    assert members(ranks, 1) == [(0, 2)]


class Late(MemoryTransport):
    """A transport whose sums are fetched only when somebody says so."""

    may_fetch = threading.Event()

    def send(self, array, target, tag):
        sent = super().send(array, target, tag)
        return self if tag == 2 else sent

    def done(self):
        return self.may_fetch.is_set()


def test_no_more_sums_are_kept_for_a_rank_than_is_said():
    ranks = Ranks(2, 1, most_kept_bytes=2 * 12)
    Late.may_fetch.clear()
    ranks.of_rank[1]._transport.__class__ = Late
    try:
        for turn in range(2):
            assert ranks.begin(1, turn)()[0] == turn
        third = ranks.begin(1, 2.0)
        ranks.wait_until_closed(0)
        assert not third.is_done()
        Late.may_fetch.set()
        assert third()[0] == 2.0
    finally:
        Late.may_fetch.set()
        ranks.end()
