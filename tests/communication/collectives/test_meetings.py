"""Rank 0 gets what it asks for, one thing after the other."""

import threading
import time

import meeting
import pytest

from tfdp.communication.collectives.meetings import bring_to_first
from tfdp.errors import CollectiveTimeoutError


def test_rank_0_gets_what_each_rank_sends_and_the_others_nothing():
    payloads = [bytes([rank]) * (100_000 * rank) for rank in range(3)]
    with meeting.boards(3) as boards:
        for key in ("one", "another", "one"):
            got = meeting.on_all(
                *(lambda b=b, k=key: bring_to_first(b, k, payloads[b.rank]) for b in boards)
            )
            assert got == [payloads, [], []]
        # What is sent to rank 0 lies on no other board, and no more on that one.
        assert all(not board._posts for board in boards)


def test_nothing_is_sent_before_rank_0_asks_for_it():
    with meeting.boards(2) as (first, second):
        sent = []

        def send():
            for number in range(3):
                bring_to_first(second, f"{number}", bytes([number]))
                sent.append(number)

        thread = threading.Thread(target=send)
        thread.start()
        for number in range(3):
            time.sleep(0.05)
            assert sent == list(range(number))
            assert not first.posted(f"{number}")
            assert bring_to_first(first, f"{number}", b"") == [b"", bytes([number])]
            while len(sent) == number:
                time.sleep(0.01)
        thread.join()


def test_a_rank_that_does_not_come_is_named():
    said = pytest.raises(CollectiveTimeoutError, match=r"a part must come .* rank 1 did not")
    with meeting.boards(2, timeout_seconds=0.5) as (first, _), said:
        bring_to_first(first, "a part", b"")
