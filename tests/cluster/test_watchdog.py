"""A rank that is silent or does not come to a collective is named, on all ranks."""

import dataclasses
import time
import types

import meeting
import pytest

from tfdp.cluster import control_channel, watchdog
from tfdp.cluster.watchdog import TRACE_OF, Progress, Watchdog
from tfdp.errors import CollectiveTimeoutError, RankLostError, RankMismatchError


def failure_of(board, within_seconds=60.0):
    """Waits for what goes wrong."""
    deadline = time.monotonic() + within_seconds
    while board.failure is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return str(board.failure)


def until(holds):
    """Waits for what must come."""
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Clock:
    """The clock by which signs are judged; it goes on where the test says so.

    Attributes:
      now: The time in seconds.
    """

    now = 100.0

    def monotonic(self):
        return self.now

    def goes_on(self, seconds, until_seen):
        """Goes on in steps too short to be a silence, each once what was to be seen is seen."""
        for _ in range(round(seconds / 0.2)):
            until(until_seen())
            self.now += 0.2


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (control_channel, watchdog):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=made.monotonic))
    return made


def test_a_silent_rank_is_lost_on_all():
    with meeting.boards(3) as boards:
        sign = dataclasses.asdict(Progress()) | {"text": "", "waits": []}
        boards[0]._signs[1] = (float("inf"), sign)  # rank 1 is never silent
        dog = Watchdog(boards[0], Progress, silence_seconds=1.0, period_seconds=0.1)
        for board in boards[:2]:
            assert "lost rank 2: it gave no sign of life" in failure_of(board)
        dog.stop()


def test_a_silent_rank_0_is_lost_to_the_others():
    with meeting.boards(2) as boards:
        dog = Watchdog(boards[1], Progress, silence_seconds=1.0, period_seconds=0.1)
        assert "lost rank 0: it gave no sign of life" in failure_of(boards[1])
        dog.stop()


def test_ranks_that_give_signs_are_not_lost_and_may_end(clock):
    looks = []

    def progress():
        looks.append(clock.now)
        return Progress()

    with meeting.boards(2) as boards:
        dogs = [Watchdog(b, progress, silence_seconds=1.0, period_seconds=0.02) for b in boards]

        def both_heard():
            return lambda: all(
                [age for age, _ in board.signs().values()] == [0.0] for board in boards
            )

        def looked():
            before = len(looks)
            return lambda: len(looks) >= before + 2  # one whole round lies between

        clock.goes_on(4.0, both_heard)
        assert [board.failure for board in boards] == [None, None]
        dogs[1].stop()
        boards[1].close()
        until(lambda: 1 in boards[0].ended())
        clock.goes_on(4.0, looked)
        assert boards[0].failure is None
        dogs[0].stop()


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_collective_that_is_not_done_in_time_names_operation_step_and_missing_rank(waiting):
    inside = Progress(steps=12, begun=7, done=6, operation="all_reduce of float32 [3]")
    behind = Progress(steps=11, begun=6, done=6)
    with meeting.boards(2, timeout_seconds=1.0) as boards:
        dogs = [Watchdog(boards[1 - waiting], lambda: behind, 60.0, 0.1)]
        until(boards[waiting].signs)
        dogs.append(Watchdog(boards[waiting], lambda: inside, 60.0, 0.1))
        for board in boards:
            text = failure_of(board)
            assert text.startswith(f"Rank {waiting}: all_reduce of float32 [3] of step 12")
            assert f"rank {1 - waiting} did not take part" in text
            assert "in step 11, outside any collective" in text
        for dog in dogs:
            dog.stop()


@pytest.mark.parametrize("where", ["in a collective", "on the board"])
def test_a_rank_that_goes_on_from_an_error_is_lost_to_those_that_wait_for_it(where):
    inside = Progress(steps=3, begun=2, done=1, operation="all_reduce of float32 [3]")
    outside = Progress(steps=3, begun=1, done=1)
    went_on = Progress(steps=3, begun=1, done=1, error="ValueError: mine")
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        state = inside if where == "in a collective" else outside
        dogs = [
            Watchdog(boards[0], lambda: state, 60.0, 0.1),
            Watchdog(boards[1], lambda: went_on, 60.0, 0.1),
        ]
        if state is outside:
            with pytest.raises(RankLostError):
                boards[0].all_gather("the next step")
        operation = "the next step" if state is outside else inside.operation
        for board in boards:
            text = failure_of(board)
            assert "lost rank 1: it left step 3 with ValueError: mine, alone" in text
            assert f"the others wait for it in {operation}" in text
        for dog in dogs:
            dog.stop()


def watched(boards, *states):
    """A watchdog for each board, whose process stands still."""
    return [
        Watchdog(board, lambda state=state: state, 60.0, 0.1)
        for board, state in zip(boards, states, strict=True)
    ]


GOES_ON = Progress(3, 2, 1, "all_reduce of float32 [3]", settings={"`stop`": False})
STOPS = Progress(2, 1, 1, settings={"`stop`": True})


def test_ranks_that_wait_for_each_other_are_told_what_differs():
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        dogs = watched(boards, GOES_ON, STOPS)
        with pytest.raises(RankMismatchError):
            boards[1].all_gather("the metrics")
        for board in boards:
            text = failure_of(board)
            assert "`stop` must be alike on all ranks" in text
            assert "False on rank 0 and True on rank 1" in text
            assert "Rank 0 is in step 3, inside all_reduce of float32 [3]" in text
            assert "Rank 1 is in step 2, outside any collective, with `stop` True, waiting" in text
        for dog in dogs:
            dog.stop()


def test_a_function_that_one_rank_traces_while_others_run_it_is_named():
    traces = Progress(2, 1, 1)
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        dogs = watched(boards, dataclasses.replace(GOES_ON, settings={}), traces)
        with pytest.raises(RankMismatchError):
            boards[1].wait("a trace", [0], f"{TRACE_OF}step")
        for board in boards:
            text = failure_of(board)
            assert "'step' was traced once more on rank 1" in text
            assert "rank 0 went on without" in text
            assert "Rank 0 is in step 3, inside all_reduce of float32 [3]" in text
        for dog in dogs:
            dog.stop()


def test_a_trace_in_the_step_that_others_are_in_is_waited_for():
    with meeting.boards(2, timeout_seconds=1.5) as boards:
        dogs = watched(boards, dataclasses.replace(GOES_ON, settings={}), Progress(3, 1, 1))
        with pytest.raises(CollectiveTimeoutError):  # the deadline, after 15 periods
            boards[1].wait("a trace", [0], f"{TRACE_OF}step")
        for dog in dogs:
            dog.stop()


@pytest.mark.parametrize("other", [STOPS, dataclasses.replace(GOES_ON, settings=STOPS.settings)])
def test_what_differs_ends_nothing_where_a_rank_does_not_wait_or_all_wait_in_one_place(other):
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        dogs = watched(boards, GOES_ON, other)
        time.sleep(1.0)
        assert [board.failure for board in boards] == [None, None]
        for dog in dogs:
            dog.stop()


def test_a_collective_that_all_have_begun_is_under_way_however_long_one_takes():
    ended = dataclasses.replace(STOPS, steps=3, begun=2, done=2)
    with meeting.boards(2, timeout_seconds=2.0) as boards:
        dogs = watched(boards, GOES_ON, ended)
        with pytest.raises(CollectiveTimeoutError):  # the deadline, after 20 periods
            boards[1].all_gather("the metrics")
        for dog in dogs:
            dog.stop()


def test_a_rank_that_has_ended_is_lost_to_a_collective_and_where_it_was_is_told():
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        dogs = watched(boards, GOES_ON, STOPS)
        dogs[1].stop()
        boards[1].close()
        text = failure_of(boards[0])
        assert "lost rank 1: it has ended (in step 2, outside any collective" in text
        assert "with `stop` True), and all_reduce of float32 [3] of step 3 was still to" in text
        assert "timeout_seconds" not in text
        dogs[0].stop()


def test_an_error_that_all_ranks_go_on_from_ends_nothing():
    went_on = Progress(steps=3, begun=1, done=1, error="ValueError: ours")
    with meeting.boards(2, timeout_seconds=60.0) as boards:
        dogs = [Watchdog(b, lambda: went_on, 60.0, 0.1) for b in boards]
        time.sleep(1.0)
        assert [board.failure for board in boards] == [None, None]
        for dog in dogs:
            dog.stop()


def test_collectives_that_go_on_are_in_time_however_many():
    state = {"done": 0}

    def progress():
        state["done"] += 1
        return Progress(steps=1, begun=state["done"] + 1, done=state["done"], operation="x")

    with meeting.boards(2, timeout_seconds=0.5) as boards:
        dogs = [Watchdog(b, progress, 60.0, 0.1) for b in boards]
        time.sleep(1.5)
        assert boards[0].failure is None
        for dog in dogs:
            dog.stop()
