"""What a rank posts appears on all boards; waits end, one way or another."""

import asyncio
import concurrent.futures
import socket

import meeting
import pytest

from tfdp.cluster import control_channel
from tfdp.cluster.connections import Connections
from tfdp.cluster.control_channel import ControlChannel
from tfdp.cluster.rank_status import told
from tfdp.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RankLostError,
    RankMismatchError,
)


def test_all_ranks_gather_values_and_payloads_in_the_order_of_ranks():
    payloads = [bytes([rank]) * (100_000 * rank) for rank in range(3)]
    with meeting.boards(3) as boards:
        for _ in range(2):
            gathered = meeting.on_all(
                *(lambda b=b: b.all_gather("x", {"of": b.rank}, payloads[b.rank]) for b in boards)
            )
            for posts in gathered:
                assert [post.value["of"] for post in posts] == [0, 1, 2]
                assert [post.payload for post in posts] == payloads


def test_rank_0_does_not_wait_for_those_who_take_what_it_gives():
    with meeting.boards(2) as (first, second):
        for number in range(3):
            first.from_first("x", number)
        assert [second.from_first("x").value for _ in range(3)] == [0, 1, 2]


def test_a_text_has_one_number_whoever_asks_first():
    with meeting.boards(3) as boards:
        numbers = meeting.on_all(
            *(lambda b=b: [b.number(f"{(i * (b.rank + 1)) % 7}") for i in range(7)] for b in boards)
        )
        by_text = [
            {f"{(i * (rank + 1)) % 7}": number for i, number in enumerate(of_rank)}
            for rank, of_rank in enumerate(numbers)
        ]
        assert by_text[0] == by_text[1] == by_text[2]
        assert len(set(by_text[0].values())) == 7


def test_a_series_counts_apart_from_others():
    with meeting.boards(2) as (first, second):
        one = [second.number("a", series=0), first.number("b", 5, series=0)]
        other = first.number("c", 3)
        assert [*one, second.number("d", series=0)] == [0, 1, 6]
        assert second.number("e") == other + 3


def test_a_wait_ends_at_its_deadline_and_names_who_is_missing():
    with meeting.boards(3) as (first, second, _):
        second.sign({"text": "in step 4, outside any collective"})
        second.post("subject#0")
        first.wait("subject#0", [1], "what is there when the time begins", keep=True)
        first.timeout_seconds = 1.0
        with pytest.raises(CollectiveTimeoutError) as caught:
            first.all_gather("subject")
        assert "Rank 0: subject must come from every rank within 1 s" in str(caught.value)
        assert "rank 2 did not send it" in str(caught.value)
        assert "Rank 2 gave no sign" in str(caught.value)
        assert "Rank 1" not in str(caught.value)


def test_a_rank_that_ends_is_lost_to_those_who_wait_for_it_only():
    with meeting.boards(2) as (first, second):
        second.post("early#0")
        second.close()
        first.post("early#0")
        assert len(first.wait("early#0", [0, 1], "early")) == 2
        with pytest.raises(RankLostError) as caught:
            first.all_gather("late")
        assert "lost rank 1: it has ended" in str(caught.value)
        assert first.failure is None


def test_a_check_comes_before_the_loss_of_a_rank_that_may_have_ended_for_the_same_reason():
    def check():
        raise CollectiveMismatchError("Rank 0: what differs")

    with meeting.boards(2) as (first, second):
        second.close("CollectiveMismatchError: Rank 1: what differs")
        with pytest.raises(RankLostError):
            first.wait("x", [1], "x")
        with pytest.raises(CollectiveMismatchError, match="what differs"):
            first.wait("x", [1], "x", check=check)


@pytest.mark.parametrize("loser", [0, 1, 2])
def test_a_rank_that_ends_with_an_error_ends_all(loser):
    with meeting.boards(3) as boards:
        others = [board for board in boards if board.rank != loser]
        boards[loser].close("ValueError: my own mistake")
        errors = meeting.on_all(*(lambda b=b: b.all_gather("x") for b in others))
        for error in errors:
            assert isinstance(error, RankLostError)
            assert f"lost rank {loser}" in str(error)
            assert "my own mistake" in str(error)


@pytest.mark.parametrize("error", [None, "ValueError: my own mistake"])
def test_a_rank_that_cannot_go_on_without_another_tells_the_launcher(error, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDP_RUN_STATUS", str(tmp_path))
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}')
    with meeting.boards(2) as (first, second):
        second.close(error)
        with pytest.raises(RankLostError):
            first.all_gather("x")
    assert told(str(tmp_path), 0).lost_rank == 1


def test_the_launcher_is_told_before_one_who_waits_ends(monkeypatch):
    ended_before = []
    with meeting.boards(2) as (first, second):

        def told_slowly(**changes):
            assert changes == {"lost_rank": 1}
            ended_before.append(bool(concurrent.futures.wait([waits], 0.5).done))

        monkeypatch.setattr(control_channel, "tell", told_slowly)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(first.all_gather, "x")
            second.wait("x#0", [0], "x")
            second.close("ValueError: my own mistake")
            with pytest.raises(RankLostError):
                waits.result(20.0)
    assert ended_before == [False]


@pytest.mark.parametrize("loser", [0, 2])
def test_a_broken_connection_is_a_lost_rank_on_all(loser):
    with meeting.boards(3) as boards:
        writers = list(boards[loser]._writers.values())

        def abort():
            # All at once: between two it would see the first broken, and call the other end lost.
            for writer in writers:
                writer.transport.abort()

        boards[loser]._connections.loop.call_soon_threadsafe(abort)
        others = [board for board in boards if board.rank != loser]
        errors = meeting.on_all(*(lambda b=b: b.all_gather("x") for b in others))
        assert all(f"lost rank {loser}" in str(error) for error in errors)


@pytest.mark.parametrize(
    "kind", [CollectiveMismatchError, CollectiveTimeoutError, RankMismatchError]
)
def test_a_failure_of_one_rank_is_that_of_all_with_its_kind_and_text(kind):
    heard = []
    with meeting.boards(3) as boards:
        boards[2].on_failure(heard.append)
        boards[1].fail(kind("Rank 1: what went wrong"))
        for board in (boards[0], boards[2]):
            with pytest.raises(kind, match="Rank 1: what went wrong"):
                board.barrier("anything")
        assert [str(error) for error in heard] == ["Rank 1: what went wrong"]


def test_nothing_is_written_after_the_goodbye():
    """As where rank 0 has ended, and passes on what a rank sent that had not heard of it."""
    connections, errors = Connections(), []
    connections.loop.set_exception_handler(lambda loop, context: errors.append(context["message"]))
    ours, theirs = socket.socketpair()
    with theirs, concurrent.futures.ThreadPoolExecutor(1) as pool:
        connections.streams[1] = connections.run(asyncio.open_connection(sock=ours))
        board = ControlChannel(0, 2, connections, 5.0)
        closed = pool.submit(board.close)
        received = b""
        while part := theirs.recv(2**16):  # until the stream's end
            received += part
        assert b"bye" in received
        board.sign("late")
        connections.run(asyncio.sleep(0))
        assert errors == []
        theirs.close()
        closed.result(30)
    connections.close()


def test_a_check_can_end_a_wait():
    def check():
        if first.posted("other"):
            raise KeyError("in vain")

    with meeting.boards(2) as (first, second):
        second.post("other")
        with pytest.raises(KeyError, match="in vain"):
            first.wait("never", [1], "what never comes", check=check)
