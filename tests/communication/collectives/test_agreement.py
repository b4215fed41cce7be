"""Processes compare what they traced, whenever each of them traces."""

import functools
import re
import threading
import time

import meeting
import pytest

from tfdp.communication.collectives.agreement import CollectiveAgreement
from tfdp.communication.engines.sequence import CollectiveCall, Sequences
from tfdp.errors import CollectiveMismatchError, CollectiveTimeoutError, RankLostError

EVERYONE = (0, 1)


def traced(rank, *shapes, group=EVERYONE):
    """The record of a trace in which `rank` issued an all-reduce of each shape."""
    sequences = Sequences(lambda call, ordinal, keys: 0)
    with sequences.going_on(rank):
        for shape in shapes:
            sequences.instance_key(rank, CollectiveCall("all_reduce", "float32", shape, group))
    return sequences


def agreements(boards, local_size=1):
    """One for each board."""
    return [CollectiveAgreement(board, local_size, "strategy 0") for board in boards]


def test_ranks_that_traced_the_same_go_on_and_never_ask_again():
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        for shapes in ([(3,)], [(3,), (4, 4)]):
            assert meeting.on_all(
                lambda s=shapes: first.reach(traced(0, *s), "f"),
                lambda s=shapes: second.reach(traced(1, *s), "f"),
            ) == [None, None]
        # Traces again, alone.
        first.reach(traced(0, (3,)), "f")
        second.reach(traced(1, (3,), (4, 4)), "g")


def test_a_rank_waits_for_one_that_traces_later():
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        reached = []
        waiting = threading.Thread(target=lambda: reached.append(first.reach(traced(0, (2,)), "f")))
        waiting.start()
        time.sleep(0.3)
        assert not reached
        second.reach(traced(1, (2,)), "f")
        waiting.join()
        assert reached == [None]


@pytest.mark.parametrize(
    ("mine", "theirs", "number"), [([(3,)], [(4,)], 1), ([(3,)], [(3,), (1,)], 2), ([], [(1,)], 1)]
)
def test_different_traces_are_named_on_both_ranks(mine, theirs, number):
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        errors = meeting.on_all(
            lambda: first.reach(traced(0, (9,), *mine), "mine"),
            lambda: second.reach(traced(1, (9,), *theirs), "theirs"),
        )
        for rank, error in enumerate(errors):
            assert isinstance(error, CollectiveMismatchError)
            assert f"Rank {rank}: every rank must issue" in str(error)
            assert f"number {number + 1} is " in str(error)
            assert "'mine' of rank 0" in str(error) and "'theirs' of rank 1" in str(error)


@pytest.mark.parametrize("reach", ["collectives", "a program"])
def test_a_rank_names_what_differs_though_the_other_has_ended_by_then(reach, monkeypatch):
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        sent = boards[0]._send

        def send_and_lose(*arguments, **named):
            """The other rank reads this and ends with its own error, before this rank goes on."""
            sent(*arguments, **named)
            boards[0]._failed(RankLostError("lost rank 1"))

        def attempt(agreement, rank):
            if reach == "a program":
                agreement.reach_program([f"Sin#{rank}"], "f", str)
            else:
                agreement.reach(traced(rank, (9,), (rank + 1,)), "f")

        def own():
            deadline = time.monotonic() + 60.0
            while len(boards[0]._posts) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            monkeypatch.setattr(boards[0], "_send", send_and_lose)
            attempt(first, 0)

        for error in meeting.on_all(own, lambda: attempt(second, 1)):
            assert isinstance(error, CollectiveMismatchError), error


def test_what_was_told_before_is_compared_before_a_lost_rank_is_named():
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        boards[0].timeout_seconds = 0.2
        with pytest.raises(CollectiveTimeoutError):
            first.reach(traced(0, (9,)), "f")  # the other has traced nothing yet
        with pytest.raises(CollectiveMismatchError):
            second.reach(traced(1, (8,)), "g")
        deadline = time.monotonic() + 60.0
        while not any(1 in by_rank for by_rank in boards[0]._posts.values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        boards[0]._failed(RankLostError("lost rank 1"))
        with pytest.raises(CollectiveMismatchError):
            first.reach(traced(0, (9,)), "f")


def test_a_rank_that_traces_nothing_is_named_at_the_deadline():
    with meeting.boards(2, timeout_seconds=0.5) as boards:
        first, _ = agreements(boards)
        with pytest.raises(CollectiveTimeoutError, match=r"the trace of f.*rank 1 did not send it"):
            first.reach(traced(0, (3,)), "f")


def test_what_stays_inside_a_process_is_nobody_elses_business():
    with meeting.boards(2, timeout_seconds=0.5) as boards:
        first, _ = agreements(boards, local_size=2)
        first.reach(traced(0, (3,), group=(0, 1)), "f")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (["Sin#1", "Sum#2"], ["Exp#1", "Sum#2"], "number 1 is Sin at a.py:0 .* and Exp in"),
        (["Sin#1", "Sum#2"], ["Sin#1", "Sum#3"], "number 2 is Sum at a.py:1 .* another one, of"),
        (["Sin#1"], ["Sin#1", "Sum#2"], "number 2 is missing .* and Sum in"),
        (["Sin#1", "Sum#2"], ["Sin#1"], "number 2 is Sum at a.py:1 .* and missing in"),
    ],
)
def test_the_first_operation_that_differs_between_programs_is_named(mine, theirs, said):
    with meeting.boards(2) as boards:

        def reach(agreement, own):
            def described(number):
                return f"{own[number].partition('#')[0]} at a.py:{number}"

            with pytest.raises(CollectiveMismatchError) as raised:
                agreement.reach_program(own, "f", described)
            return str(raised.value)

        first, second = agreements(boards)
        told, _ = meeting.on_all(lambda: reach(first, mine), lambda: reach(second, theirs))
        assert re.search(said, told)


def test_ranks_with_the_same_program_go_on_and_never_ask_again():
    with meeting.boards(2) as boards:
        first, second = agreements(boards)
        operations = ["Sin#1", "Sum#2"]
        assert meeting.on_all(
            lambda: first.reach_program(operations, "f", str),
            lambda: second.reach_program(operations, "g", str),
        ) == [None, None]
        first.reach_program(operations, "f", str)


def test_ranks_that_were_refused_agree_on_what_they_trace_alike_and_on_nothing_else():
    def of_program(agreement, text):
        agreement.reach_program([text], "f", lambda number: text)

    def of_trace(agreement, text):
        agreement.reach(traced(agreement is second, (len(text),)), "f")

    def error_of(reach, agreement, text):
        try:
            reach(agreement, text)
        except CollectiveMismatchError as error:
            return type(error)

    attempts = [("Sin", "Tan2"), ("Tan2", "Sin"), ("Sin", "Sin"), ("Sin", "Sin"), ("A", "Tan2")]
    for reach in (of_program, of_trace):
        with meeting.boards(2) as boards:
            first, second = agreements(boards)
            for mine, theirs in attempts:
                refused = None if mine == theirs else CollectiveMismatchError
                found = meeting.on_all(
                    functools.partial(error_of, reach, first, mine),
                    functools.partial(error_of, reach, second, theirs),
                )
                assert found == [refused] * 2, (mine, theirs)
