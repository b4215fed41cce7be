"""The place after any number of batches is the one that counting by hand gives."""

import threading

import hypothesis
import pytest
from hypothesis import strategies as st

from tfdp.data.progress import PipelineProgress


def place_by_hand(length, size, drop_remainder, taken):
    """The oracle: every batch of every epoch, one after the other."""
    epoch, position = 0, 0
    for _ in range(taken):
        position += min(size, length - position)
        left = length - position
        if left == 0 or (drop_remainder and left < size):
            epoch, position = epoch + 1, 0
    return epoch, position


@pytest.mark.slow
@hypothesis.given(
    length=st.integers(1, 60),
    size=st.integers(1, 20),
    drop_remainder=st.booleans(),
    taken=st.integers(0, 200),
)
def test_the_place_is_that_of_the_batches_taken(length, size, drop_remainder, taken):
    hypothesis.assume(size <= length or not drop_remainder)
    progress = PipelineProgress(length, size, drop_remainder)
    for _ in range(taken):
        assert progress.batches_left > 0
        progress.take(0.25)
    assert progress.place == place_by_hand(length, size, drop_remainder, taken)
    assert progress.waited_seconds == pytest.approx(0.25 * taken)
    assert progress.is_fresh == (taken == 0)


def test_batches_left_count_from_the_place():
    progress = PipelineProgress(10, 4, drop_remainder=False)
    progress.move(3, 4)
    assert progress.batches_left == 2
    progress.take()
    assert (progress.batches_left, progress.place) == (1, (3, 8))
    progress.take()
    assert (progress.batches_left, progress.place) == (3, (4, 0))


def test_a_place_at_the_end_of_an_epoch_is_the_next_one_s_beginning():
    progress = PipelineProgress(10, 4, drop_remainder=True)
    progress.move(2, 8)
    assert progress.place == (3, 0)


def test_a_length_that_a_reader_has_seen_counts_when_a_step_finds_the_end():
    progress = PipelineProgress(None, 4, drop_remainder=False)
    for _ in range(3):
        progress.take()
    progress.read_to_end(10)
    assert (progress.place, progress.batches_left) == ((0, 12), None)
    assert progress.has_nothing_after(12)
    progress.end()
    assert (progress.place, progress.batches_left) == ((1, 0), 3)


def test_a_reader_that_is_ahead_changes_nothing():
    progress = PipelineProgress(None, 4, drop_remainder=False)
    progress.take()
    progress.read_to_end(10)
    assert not progress.has_nothing_after(4)
    assert (progress.place, progress.batches_left) == ((0, 4), None)


@pytest.mark.parametrize("early", [False, True])
def test_an_endless_reader_goes_over_the_end_whenever_it_has_seen_it(early):
    progress = PipelineProgress(None, 4, drop_remainder=False)
    places = []
    for number in range(5):
        if number == (1 if early else 3):
            progress.read_to_end(10)
        progress.take()
        places.append(progress.place)
    assert places == [(0, 4), (0, 8), (0, 12), (1, 4), (1, 8)]


def test_batches_of_many_threads_are_all_counted():
    progress = PipelineProgress(1000, 1, drop_remainder=False)
    threads = [
        threading.Thread(target=lambda: [progress.take(1.0) for _ in range(250)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert progress.place == (2, 0)
    assert progress.waited_seconds == 2000
