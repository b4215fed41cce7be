"""What errors add where the order of threads may be why ranks differ."""

import threading

import pytest

from tfdp.base import threads


@pytest.fixture(autouse=True)
def nobody_noted(monkeypatch):
    monkeypatch.setattr(threads, "_names", {})


def in_thread(name, function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), name=name)
    thread.start()
    thread.join()
    return found[0]


def test_a_program_of_one_thread_is_told_nothing_of_threads():
    threads.note()
    assert threads.hint() == ""


def test_threads_that_took_part_are_named_with_what_to_do():
    assert "Here the thread `second` made" in in_thread("second", threads.hint)
    assert "the threads `second` and `MainThread` made" in threads.hint()
    in_thread("third", threads.note)
    said = threads.hint()
    assert "the threads `second`, `MainThread` and `third` made" in said
    assert "use one thread for that, or one after the other, in the same order" in said


def test_threads_of_tfdp_and_of_eager_replicas_do_not_count():
    in_thread("tfdp-board", threads.note)

    class Replica(threading.Thread):
        replica_id = 0

        def run(self):
            threads.note()

    replica = Replica()
    replica.start()
    replica.join()
    assert threads.hint() == ""
