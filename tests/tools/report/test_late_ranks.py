"""The rank that comes last, found from the waits alone."""

import numpy as np
import pytest
from tools.report.logs import later_steps, start_line, step_line, write_rank, write_run

from tfdp.tools.report.late_ranks import straggler, stragglers, waits
from tfdp.tools.report.log_directory import read_run


@pytest.mark.parametrize("late", [0, 3])
def test_a_rank_that_is_late_is_named_with_its_host(tmp_path, late):
    run = read_run(write_run(tmp_path, ranks=4, late_rank=late, late_seconds=0.05))
    found = waits(run)
    last = straggler(found)
    assert (last.rank, last.host) == (late, f"node-{late // 2}")
    assert last.times_last == last.samples == 33
    assert stragglers(found) == (last,)
    table = np.array(
        [
            [
                values["first_bucket_wait_seconds"]
                for values in later_steps(tmp_path, rank)
                if "first_bucket_wait_seconds" in values
            ]
            for rank in range(4)
        ]
    )
    others = np.delete(table, late, axis=0)
    expected = np.median(np.median(others, 0) - table[late])
    assert last.late_seconds == pytest.approx(expected, rel=1e-12)
    assert [wait.wait_seconds for wait in found] == pytest.approx(np.median(table, 1), rel=1e-12)


def test_ranks_that_are_late_in_turn_are_no_stragglers(tmp_path):
    found = waits(read_run(write_run(tmp_path, ranks=4)))
    assert sum(wait.times_last for wait in found) == found[0].samples
    assert stragglers(found) == ()


@pytest.mark.parametrize(("seconds", "late"), [(1.0, [1]), (17.0, [])])
def test_a_delay_is_judged_beside_the_step_of_the_run(tmp_path, seconds, late):
    for rank, wait in enumerate((0.1, 0.0)):
        values = {"seconds": seconds, "first_bucket_wait_seconds": wait}
        lines = [step_line(n, **values) for n in range(1, 10)]
        write_rank(tmp_path, [start_line(rank, 2), *lines], rank)
    assert [wait.rank for wait in stragglers(waits(read_run(tmp_path)))] == late


def test_only_steps_that_all_ranks_have_sampled_count(tmp_path):
    def steps(*waits):
        return [step_line(n, first_bucket_wait_seconds=w) for n, w in enumerate(waits, 1)]

    write_rank(tmp_path, [start_line(0, 2), *steps(9.0, 1.0, 1.0, 9.0)])
    write_rank(tmp_path, [start_line(1, 2), *steps(1.0, 2.0, 2.0)], rank=1)
    found = waits(read_run(tmp_path))
    assert [(wait.times_last, wait.samples) for wait in found] == [(2, 2), (0, 2)]


def test_two_slow_ranks_of_many_are_not_missed_because_they_take_turns(tmp_path):
    for rank in range(6):
        slow = {4: (0.0, 0.01), 5: (0.01, 0.0)}.get(rank, (0.2, 0.2))
        waited = [{"first_bucket_wait_seconds": slow[n % 2]} for n in range(12)]
        lines = [step_line(n, **wait) for n, wait in enumerate(waited, 1)]
        write_rank(tmp_path, [start_line(rank, 6), *lines], rank)
    found = waits(read_run(tmp_path))
    assert [(late.rank, late.times_last) for late in stragglers(found)] == [(5, 6), (4, 5)]


def test_a_few_samples_say_nothing(tmp_path):
    for rank in (0, 1):
        lines = [step_line(n, first_bucket_wait_seconds=0.5 * rank) for n in range(1, 6)]
        write_rank(tmp_path, [start_line(rank, 2), *lines], rank)
    found = waits(read_run(tmp_path))
    assert (found[0].times_last, found[0].samples) == (4, 4)
    assert stragglers(found) == ()


def test_a_rank_that_is_awaited_in_the_loss_already_is_late_too(tmp_path):
    for rank, meeting in ((0, 0.0), (1, 0.3)):
        waits_ = {"first_bucket_wait_seconds": 0.02 - 0.01 * rank, "meeting_seconds": meeting}
        write_rank(tmp_path, [start_line(rank, 2), *(step_line(n, **waits_) for n in (1, 2))], rank)
    last = straggler(waits(read_run(tmp_path)))
    assert last.rank == 0 and last.late_seconds == pytest.approx(0.29)


def test_one_rank_has_nobody_to_wait_for(tmp_path):
    assert waits(read_run(write_run(tmp_path, ranks=1))) == ()
