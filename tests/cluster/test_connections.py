"""What was sent leaves the process, or its sender is told."""

import threading
import time

import meeting
import pytest

from tfdp.errors import CollectiveTimeoutError


def test_after_a_flush_nothing_that_was_sent_or_passed_on_is_left_in_the_process():
    payload = bytes(20_000_000)  # more than a socket takes at once
    with meeting.boards(3) as (first, second, third):
        second.post("x", 1, payload)
        first.wait("x", [1], "x")
        # As if the thread that passes messages on got no core now.
        first._connections.loop.call_soon_threadsafe(time.sleep, 0.2)
        first.post("x", 0)
        first._connections.flush(0, first.timeout_seconds)
        assert not any(
            writer.transport.get_write_buffer_size() for writer in first._writers.values()
        )
        # Nothing of rank 0 runs from now on.
        goes_on = threading.Event()
        first._connections.loop.call_soon_threadsafe(goes_on.wait, 20)
        try:
            posts = third.wait("x", [0, 1], "x")
        finally:
            goes_on.set()
        assert (posts[0].value, posts[1].payload) == (0, payload)


def test_a_flush_ends_at_its_deadline_where_another_rank_does_not_read():
    with meeting.boards(2, timeout_seconds=0.5) as (first, second):
        goes_on = threading.Event()
        second._connections.loop.call_soon_threadsafe(goes_on.wait, 20)
        first.post("x", 1, bytes(50_000_000))
        try:
            with pytest.raises(CollectiveTimeoutError, match=r"must be read within 0\.5 s"):
                first._connections.flush(0, first.timeout_seconds)
        finally:
            goes_on.set()
