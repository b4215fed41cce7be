"""The agreement of ranks: on one point, whoever is asked and when, and again after that."""

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.callbacks.checkpoint.agreed_points import INTERVAL, AgreedPoints
from tfdp.cluster.control_channel import Post
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
                lambda: len(self.ranks.posts.get(key, {})) == self.ranks.count, 120
            )
            assert done
            return dict(self.ranks.posts[key])


def run(count, points, asked, seed):
    """Lets ranks go through points in step, as collectives hold them.

    A rank cannot end an execution before the others have begun it.

    Returns:
      For each rank what it was told at which points.
    """
    ranks, meeting = Ranks(count), threading.Barrier(count)
    agreed = [AgreedPoints(Rank(ranks, rank)) for rank in range(count)]
    for each in agreed:
        each.training = 0  # one process has a number for each
    told = [{} for _ in range(count)]

    def train(rank):
        draws = random.Random(seed * count + rank)
        for point in range(points):
            meeting.wait(120)
            if (rank, point) in asked:
                agreed[rank].ask(f"{rank} at {point}")
            time.sleep(draws.random() * 0.002)
            if here := agreed[rank].here():
                told[rank][point] = here

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(count)]
    for each in agreed:
        each.open()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for each in agreed:
        each.close()
    return told


@settings(max_examples=15)
@given(
    count=st.integers(1, 4),
    asked=st.sets(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2, 3, 150])), max_size=3),
    seed=st.integers(0, 99),
)
def test_all_ranks_agree_on_one_point_for_each_thing_asked_for(count, asked, seed):
    asked = {(rank, point) for rank, point in asked if rank < count}
    told = run(count, 400, asked, seed)
    assert all(each == told[0] for each in told)
    said = [text for here in told[0].values() for text in here.values()]
    for rank in {rank for rank, _ in asked}:
        # What one rank is asked for twice before it is told is the last thing.
        last = max(point for r, point in asked if r == rank)
        assert f"{rank} at {last}" in said
    for point, here in told[0].items():
        assert all(int(text.split()[-1]) <= point for text in here.values())


def test_rank_0_asks_when_the_interval_is_over():
    since, taken = time.monotonic(), []  # the interval begins no earlier
    points = AgreedPoints(Rank(Ranks(1), 0), every_seconds=0.3)
    points.open()
    while len(taken) < 2:
        before = time.monotonic()
        if points.here() == {0: INTERVAL}:
            taken.append(time.monotonic() - since)
            since = before
        time.sleep(0.01)
    points.close()
    assert min(taken) >= 0.3


def test_a_lost_rank_ends_the_wait():
    class Lost(Rank):
        def post(self, key, value):
            raise RankLostError("Rank 0: lost rank 1")

        def wait_for_posts(self, key):
            raise RankLostError("Rank 0: lost rank 1")

    points = AgreedPoints(Lost(Ranks(2), 0))
    points.ask("SIGTERM")
    with pytest.raises(RankLostError):
        points.here()


def test_points_that_lie_far_apart_are_said_once(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    points = AgreedPoints(Rank(Ranks(1), 0))
    for seconds in (100.0, 1.0, 31.0, 90.0):  # the first one has traced
        now[0] += seconds
        points.here()
    assert caplog.text.count("A training can stop between two executions") == 1
    assert "Here 31 s lay between" in caplog.text
