"""Processes compare the programs that they have lowered."""

import threading
import types

import pytest

pytest.importorskip("jax")

from tfdp.cluster.board import Post
from tfdp.errors import RankMismatchError
from tfdp.xla.same_programs import check_same

MODULE = """module @a_inference_step_{0}__.9 {{
  func.func private @while_body_{0}_const__.4(%arg0: tensor<f32>)
  %0 = func.call @{1}(%arg0)
  %1 = "{2}"
  func.func private @while_cond_{0}_const__.5(%arg0: tensor<f32>)
}}
"""


def program(number, operation, called="while_body_{}_const__.4"):
    return types.SimpleNamespace(module=MODULE.format(number, called.format(number), operation))


class Rank:
    """A process among others, which are threads and meet at a barrier."""

    def __init__(self, rank, meeting, posts):
        self.said_by, self.world_size = f"Rank {rank}: ", meeting.parties
        self._rank, self._meeting, self._posts = rank, meeting, posts

    def all_gather(self, subject, value=None, payload=b""):
        self._posts[subject, self._rank] = Post(value, payload)
        self._meeting.wait(30)
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


def test_the_same_program_and_its_functions_may_have_other_numbers():
    assert errors_of(program(7, "multiply"), program(12, "multiply")) == [None, None]


def test_one_that_calls_another_of_its_functions_is_another_program():
    other = program(7, "multiply", "while_cond_{}_const__.5")
    assert None not in errors_of(program(7, "multiply"), other)


def test_each_rank_names_the_one_that_differs_and_the_first_operation_that_does():
    for rank, said in enumerate(errors_of(*[program(7, "mul")] * 2, program(7, "divide"))):
        assert said.startswith(f"Rank {rank}: all ranks must make the same program of 'step'")
        assert "of rank 0 and rank 2 it differs: '%1 = \"mul\"' there is '%1 = \"divide\"'" in said


def test_a_process_that_is_alone_asks_nobody():
    check_same(types.SimpleNamespace(world_size=1), "step", program(7, "multiply"))
