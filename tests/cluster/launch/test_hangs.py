"""Ranks that hang are found where no other rank would notice, and healthy ones are left."""

import os
import re

import pytest

from tfdp.cluster import rank_status
from tfdp.cluster.launch.hangs import Hangs

TELLS = """
from tfdp.cluster import rank_status
marked()
rank_status.tell_alive()
first = os.environ["TFDP_RESTART_COUNT"] == "0"
"""


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@pytest.fixture
def environ(folder):
    task = '{"task": {"type": "worker", "index": 0}}'
    return {"TFDP_RUN_STATUS": folder, "TF_CONFIG": task}


class Clock:
    """A clock that stands."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def found(hangs, clock, seconds, each_second=lambda: None):
    """What is found when the launcher looks for so many seconds."""
    for _ in range(seconds):
        clock.now += 1.0
        each_second()
        if said := hangs.found():
            return clock.now, said
    return None


def beaten(folder):
    path = os.path.join(folder, "rank-0-alive")
    at = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    open(path, "a").close()
    os.utime(path, ns=(at + 10**9, at + 10**9))


def test_a_rank_that_is_alone_is_lost_after_a_minute_of_silence(folder):
    clock = Clock()
    hangs = Hangs(folder, [0], 1, clock=clock)
    assert found(hangs, clock, 300) is None  # it makes no strategy yet, or never does
    assert found(hangs, clock, 300, lambda: beaten(folder)) is None
    silent, said = found(hangs, clock, 300)
    assert silent == 661
    assert said.startswith("rank 0 of 1 gave no sign of life for 60 s")


def test_ranks_that_are_not_alone_are_left_to_each_other(folder):
    clock = Clock()
    beaten(folder)
    assert found(Hangs(folder, [0], 2, clock=clock), clock, 300) is None


def test_a_launcher_that_was_stopped_itself_begins_to_wait_anew(folder):
    clock = Clock()
    hangs = Hangs(folder, [0], 1, clock=clock)
    beaten(folder)
    assert found(hangs, clock, 50) is None
    clock.now += 3600
    assert found(hangs, clock, 60) is None
    assert found(hangs, clock, 5) is not None


def test_a_training_that_reaches_no_step_is_lost_after_the_limit_for_steps(folder, environ):
    clock = Clock()
    hangs = Hangs(folder, [0], 2, step_timeout_seconds=100, clock=clock)
    assert found(hangs, clock, 300) is None  # before the first step
    mark = rank_status.StepMark(environ)
    mark.write(1)
    assert found(hangs, clock, 90) is None
    mark.write(2)
    assert found(hangs, clock, 90) is None
    assert found(hangs, clock, 300, mark.reach) is None  # in an evaluation
    since = clock.now
    at, said = found(hangs, clock, 300)
    assert 100 < at - since < 105
    assert said.startswith("rank 0 of 2 reached no step for 100 s (`step-timeout`)")


def test_what_follows_a_training_takes_what_time_it_takes(folder, environ):
    clock = Clock()
    hangs = Hangs(folder, [0], 1, step_timeout_seconds=100, clock=clock)
    mark = rank_status.StepMark(environ)
    mark.write(1)
    assert found(hangs, clock, 90) is None
    mark.close()
    assert found(hangs, clock, 300) is None


@pytest.mark.multiprocess
def test_a_rank_that_is_alone_and_stopped_is_ended_and_starts_again(runs):
    stops = TELLS + "if first: os.kill(os.getpid(), signal.SIGSTOP)\n"
    change = "from tfdp.cluster.launch import hangs\nhangs._SILENT_SECONDS = 2.0\n"
    run = runs.run("-n", 1, "--max-restarts", 1, runs.script(stops), change=change)
    assert run.returncode == 0, run.err
    assert "rank 0 of 1 gave no sign of life for 2 s, and was ended: it is stopped" in run.err
    assert re.search(r"1\. 1 rank, after \d+ s: rank 0 of 1 gave no sign of life", run.err)
    runs.assert_nobody_is_left()


@pytest.mark.multiprocess
@pytest.mark.exhaustive("test_a_rank_that_is_alone_and_stopped_is_ended_and_starts_again")
def test_ranks_that_hang_in_a_step_are_ended(runs):
    hangs = TELLS + "mark = rank_status.StepMark()\nmark.write(1)\nmark.write(2)\ntime.sleep(300)\n"
    run = runs.run("-n", 2, "--step-timeout", 2, runs.script(hangs))
    assert run.returncode == 1
    assert "of 2 reached no step for 2 s (`step-timeout`), and was ended" in run.err
    runs.assert_nobody_is_left()
