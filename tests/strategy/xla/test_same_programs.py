"""Processes compare the programs that they have lowered."""

import threading
import types

import pytest

pytest.importorskip("jax")

from tfdp.cluster.control_channel import Post
from tfdp.errors import RankMismatchError
from tfdp.strategy.xla.same_programs import check_same

MODULE = 'module {{\n  %0 = "add"\n  %1 = "{}"\n}}\n'


def program(operation):
    return types.SimpleNamespace(module=MODULE.format(operation))


class Rank:
    """A process among others, which are threads and meet at a barrier."""

    def __init__(self, rank, meeting, posts):
        self.said_by, self.world_size = f"Rank {rank}: ", meeting.parties
        self._rank, self._meeting, self._posts = rank, meeting, posts

    def all_gather(self, subject, value=None, payload=b""):
        self._posts[subject, self._rank] = Post(value, payload)
        self._meeting.wait(120)
        return [self._posts[subject, rank] for rank in range(self.world_size)]


def errors_of(*programs):
    """What the processes with these programs raise; None of one that goes on."""
    meeting, posts, errors = threading.Barrier(len(programs)), {}, [None] * len(programs)

    def compare(rank):
        try:
            check_same(Rank(rank, meeting, posts), "step", programs[rank])
        except RankMismatchError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=compare, args=[rank]) for rank in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_the_same_program_is_no_error():
    assert errors_of(program("multiply"), program("multiply")) == [None, None]


def test_each_rank_names_the_one_that_differs_and_the_first_operation_that_does():
    for rank, said in enumerate(errors_of(*[program("mul")] * 2, program("divide"))):
        assert said.startswith(f"Rank {rank}: all ranks must make the same program of 'step'")
        assert "of rank 0 and rank 2 it differs: '%1 = \"mul\"' there is '%1 = \"divide\"'" in said


def test_a_process_that_is_alone_asks_nobody():
    check_same(types.SimpleNamespace(world_size=1), "step", program("multiply"))
