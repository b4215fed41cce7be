"""What was sent leaves the process, or its sender is told."""

import threading
import time

import meeting
import pytest

from tfdp.errors import CollectiveTimeoutError, RankLostError


def flush(board, seconds=20.0):
    board._connections.flush(board.rank, seconds, board._raise_failure)


def test_after_a_flush_nothing_that_was_sent_or_passed_on_is_left_in_the_process():
    payload = bytes(20_000_000)  # more than a socket takes at once
    with meeting.boards(3) as (first, second, third):
        second.post("x", 1, payload)
        first.wait("x", [1], "x")
        # As if the thread that passes messages on got no core now.
        first._connections.loop.call_soon_threadsafe(time.sleep, 0.2)
        first.post("x", 0)
        flush(first, float("inf"))
        assert not any(
            writer.transport.get_write_buffer_size() for writer in first._writers.values()
        )
        # Nothing of rank 0 runs from now on.
        goes_on = threading.Event()
        first._connections.loop.call_soon_threadsafe(goes_on.wait, 300)
        try:
            posts = third.wait("x", [0, 1], "x")
        finally:
            goes_on.set()
        assert (posts[0].value, posts[1].payload) == (0, payload)


@pytest.mark.slow
def test_a_flush_ends_at_its_deadline_where_another_rank_does_not_read():
    with meeting.boards(3) as (first, second, third):
        goes_on = threading.Event()
        second._connections.loop.call_soon_threadsafe(goes_on.wait, 300)
        first.post("x", 1, bytes(50_000_000))
        try:
            third.wait("x", [0], "x")  # However long it takes to read all of that.
            with pytest.raises(CollectiveTimeoutError, match=r"within 0\.5 s, but rank 1 did not"):
                flush(first, 0.5)
            first._failed(RankLostError("Rank 0: lost rank 1"))
            with pytest.raises(RankLostError):  # at once
                flush(first, float("inf"))
        finally:
            goes_on.set()
