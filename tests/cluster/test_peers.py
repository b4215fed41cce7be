"""Ranks that reach each other directly: they ask and answer, are lost, and come again."""

import contextlib
import socket
import threading

import meeting
import pytest

from tfdp.cluster.peers import Peers
from tfdp.errors import ClusterError, RankLostError

SECONDS = 60.0


class Ranks:
    """Peers of one process, which answer with their rank and what they were given."""

    def __init__(self, count, **options):
        self.addresses = [f"127.0.0.1:{port}" for port in meeting.free_ports(count)]
        self.options, self.changed = options, {rank: [] for rank in range(count)}
        self.conditions = threading.Condition()
        self.peers = {rank: self.made(rank) for rank in range(count)}
        self.together(*(each.start for each in self.peers.values()))

    def made(self, rank, secret="a secret of all"):
        async def answer(asking, header, payload):
            if header.get("raises"):
                raise ValueError("no such thing")
            return {"rank": rank, "asked by": asking, **header}, payload[::-1]

        def changed(other):
            with self.conditions:
                self.changed[rank].append(other)
                self.conditions.notify_all()

        return Peers(rank, self.addresses, answer, changed, secret, SECONDS, **self.options)

    def together(self, *calls):
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()

    def until(self, holds):
        with self.conditions:
            assert self.conditions.wait_for(holds, SECONDS)

    def ask(self, rank, other, header=None, payload=b""):
        return self.peers[rank].run(self.peers[rank].ask(other, header or {}, payload))


@pytest.fixture
def ranks():
    with contextlib.ExitStack() as made:

        def make(count, **options):
            found = Ranks(count, **options)
            made.callback(lambda: [each.close() for each in found.peers.values()])
            return found

        yield make


def test_each_rank_answers_each_other_and_itself(ranks):
    three = ranks(3)
    for rank in range(3):
        for other in range(3):
            told, data = three.ask(rank, other, {"what": 7}, b"abc")
            assert told == {"rank": other, "asked by": rank, "what": 7}
            assert data == b"cba"
        assert three.peers[rank].alive == {0, 1, 2}


def test_who_cannot_answer_says_why(ranks):
    two = ranks(2)
    with pytest.raises(ClusterError, match="Rank 0: rank 1 cannot answer: ValueError: no such"):
        two.ask(0, 1, {"raises": True})
    assert two.ask(0, 1)[0]["rank"] == 1


def test_a_rank_that_leaves_is_not_lost(ranks):
    three = ranks(3)
    three.peers[2].close()
    three.until(lambda: all(three.peers[rank].gone == {2} for rank in (0, 1)))
    assert three.peers[0].lost == {}
    with pytest.raises(RankLostError, match="Rank 0: lost rank 2: it has left"):
        three.ask(0, 2)
    assert three.ask(0, 1)[0]["rank"] == 1
    three.peers[2].close()  # which it has done already


def test_a_rank_that_is_given_up_hears_of_it_and_so_do_all(ranks):
    three = ranks(3)

    async def lose():
        three.peers[0].lose(2, "it is slow")

    three.peers[0].run(lose())
    three.until(lambda: three.peers[1].lost.get(2) and three.peers[2].failure)
    assert three.peers[1].lost[2].startswith(("it is slow", "its connection broke"))
    with pytest.raises(RankLostError, match="Rank 2: rank 0 has given this rank up: it is slow"):
        three.ask(2, 1)


def test_a_rank_comes_again_in_the_place_of_one(ranks):
    three = ranks(3)
    three.peers[1].close()
    three.until(lambda: 1 in three.peers[0].gone and 1 in three.peers[2].gone)
    again = three.made(1)
    again.start(there=[0, 2])
    three.until(lambda: 1 in three.peers[0].alive and 1 in three.peers[2].alive)
    three.peers[1] = again
    assert three.ask(0, 1)[0]["rank"] == three.ask(2, 1)[0]["rank"] == 1
    assert again.alive == {0, 1, 2}


def test_a_rank_that_does_not_answer_is_given_up():
    asked = threading.Event()

    class Silent(Ranks):
        def made(self, rank, secret="a secret of all"):
            async def answer(asking, header, payload):
                asked.set()
                await never(self.peers[rank])

            return Peers(rank, self.addresses, answer, lambda other: None, secret, SECONDS, 0.5)

    async def never(peers):
        await peers.connections.loop.create_future()

    two = Silent(2)
    with pytest.raises(RankLostError, match=r"lost rank 1: it did not answer within 0\.5 s"):
        two.ask(0, 1)
    assert asked.is_set()
    for each in two.peers.values():
        each.close()


def test_strangers_and_other_secrets_are_sent_away(ranks):
    two = ranks(2)
    host, _, port = two.addresses[0].rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        while stranger.recv(4096):
            pass
    assert two.ask(1, 0)[0]["rank"] == 0
