"""The agreement on where to stop: at one point on all ranks, whoever hears of it and when."""

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.checkpoint.common_stop import CommonStop
from tfdp.cluster.board import Post
from tfdp.errors import RankLostError


class Ranks:
    """What ranks tell each other, each after a time of its own."""

    def __init__(self, count):
        self.count = count
        self.changed = threading.Condition()
        self.posts = {}


class Rank:
    def __init__(self, ranks, rank):
        self.ranks, self.rank = ranks, rank

    def post(self, key, value):
        with self.ranks.changed:
            self.ranks.posts.setdefault(key, {})[self.rank] = Post(value)
            self.ranks.changed.notify_all()

    def posted(self, key):
        with self.ranks.changed:
            return dict(self.ranks.posts.get(key, {}))

    def wait_for_posts(self, key):
        with self.ranks.changed:
            done = self.ranks.changed.wait_for(
                lambda: len(self.ranks.posts.get(key, {})) == self.ranks.count, 20
            )
            assert done
            return dict(self.ranks.posts[key])


def run(count, points, hears, seed):
    """Lets ranks go through points in step, as collectives hold them; returns where each stopped.

    A rank cannot end an execution before the others have begun it.
    """
    ranks, meeting = Ranks(count), threading.Barrier(count)
    stops = [CommonStop(Rank(ranks, rank)) for rank in range(count)]
    for stop in stops:
        stop._key = "the stop"  # one process has a number for each
    ended = {}

    def train(rank):
        draws = random.Random(seed * count + rank)
        for point in range(points):
            meeting.wait(20)
            if (rank, point) in hears:
                stops[rank]._hear(15)
            time.sleep(draws.random() * 0.002)
            if stops[rank].here() is not None:
                ended[rank] = point
                return

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(count)]
    for stop in stops:
        stop.open()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for stop in stops:
        stop.close()
    return ended


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 4),
    hears=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=3),
    seed=st.integers(0, 99),
)
def test_all_ranks_stop_at_one_point(count, hears, seed):
    hears = {(rank, point) for rank, point in hears if rank < count}
    ended = run(count, 200, hears, seed)
    if hears:
        assert ended.keys() == set(range(count))
        assert len(set(ended.values())) == 1
        assert ended[0] >= min(point for _, point in hears)
    else:
        assert ended == {}


def test_a_lost_rank_ends_the_wait():
    class Lost(Rank):
        def post(self, key, value):
            raise RankLostError("Rank 0: lost rank 1")

        def wait_for_posts(self, key):
            raise RankLostError("Rank 0: lost rank 1")

    stop = CommonStop(Lost(Ranks(2), 0))
    stop.open()
    stop._hear(15)
    with pytest.raises(RankLostError):
        stop.here()
    stop.close()


def test_points_that_lie_far_apart_are_said_once(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stop = CommonStop(Rank(Ranks(1), 0))
    for seconds in (100.0, 1.0, 31.0, 90.0):  # the first one has traced
        now[0] += seconds
        stop.here()
    assert caplog.text.count("A training can stop between two executions") == 1
    assert "Here 31 s lay between" in caplog.text
