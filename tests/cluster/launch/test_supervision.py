"""Signals, limits and graces; and that nothing of a run is ever left behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

# Each rank has a child that ignores SIGTERM, and a daemon that has left its process group.
WITH_GRANDCHILDREN = """
stubborn = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); "
stubborn += "open(sys.argv[1], 'w').close(); time.sleep(300)"
began = [f"child-{rank}", f"daemon-{rank}"]
for name in began:
    alone = name == began[1]
    subprocess.Popen([sys.executable, "-c", stubborn, name], start_new_session=alone)
while not all(map(os.path.exists, began)):
    time.sleep(0.01)
open(f"ready-{rank}", "w").close()
"""
IGNORES = "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
SLEEPS = "open(f'ready-{rank}', 'w').close()\ntime.sleep(300)\n"


def started(runs, body, *options, change=""):
    """A launcher of two ranks that have both got to their `ready`."""
    launcher = runs.start("-n", 2, *options, runs.script(body), change=change)
    runs.wait_for("ready-0", "ready-1")
    return launcher


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(runs, wait_until_ended, number):
    launcher = started(runs, SLEEPS)
    launcher.send_signal(number)
    outcome = wait_until_ended(launcher)
    assert outcome.returncode == 128 + number
    assert f"{number.name} was passed on" in outcome.verdict
    runs.assert_nobody_is_left()


def test_ctrl_c_to_the_foreground_group_ends_all(runs, wait_until_ended):
    launcher = started(runs, WITH_GRANDCHILDREN + "time.sleep(300)")
    os.killpg(launcher.pid, signal.SIGINT)
    outcome = wait_until_ended(launcher)
    assert outcome.returncode == 130
    assert outcome.err.count("KeyboardInterrupt") == 2 * 2  # each rank and the child in its group
    runs.assert_nobody_is_left()


@pytest.mark.slow
def test_ctrl_c_ends_ranks_that_ignore_it(runs, wait_until_ended):
    launcher = started(runs, IGNORES + SLEEPS)
    launcher.send_signal(signal.SIGINT)
    assert wait_until_ended(launcher).returncode == 130
    runs.assert_nobody_is_left()


def test_a_second_ctrl_c_ends_them_at_once(runs, wait_until_ended):
    hears = "signal.signal(2, lambda *_: open(f'heard-{rank}', 'w').close())\n"
    change = "from tfdp.cluster.launch import supervision\nsupervision._AFTER_SIGINT = ()\n"
    launcher = started(runs, hears + SLEEPS, change=change)
    launcher.send_signal(signal.SIGINT)
    runs.wait_for("heard-0", "heard-1")
    time.sleep(1.1)  # within a second it would be the same one, passed on twice
    launcher.send_signal(signal.SIGINT)
    assert wait_until_ended(launcher).returncode == 130
    runs.assert_nobody_is_left()


def test_ranks_may_answer_a_signal_and_end_with_0(runs, wait_until_ended):
    body = "signal.signal(15, lambda *_: (print('saved'), marked(), sys.exit(0)))\n" + SLEEPS
    launcher = started(runs, body)
    launcher.send_signal(signal.SIGTERM)
    outcome = wait_until_ended(launcher)
    assert outcome.returncode == 0
    assert sorted(outcome.out.splitlines()) == ["[0] saved", "[1] saved"]


def test_a_paused_launcher_pauses_its_ranks(runs):
    launcher = started(runs, "open(f'pid-{rank}', 'w').write(str(os.getpid()))\n" + SLEEPS)
    pids = [launcher.pid, *(int((runs.folder / f"pid-{r}").read_text()) for r in range(2))]

    def are_stopped():
        stats = (pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in pids)
        return [stat.rpartition(")")[2].split()[0] == "T" for stat in stats]

    for number, stopped in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
        launcher.send_signal(number)
        deadline = time.monotonic() + 60
        while are_stopped() != [stopped] * 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_killed_launcher_leaves_nobody(runs):
    launcher = started(runs, IGNORES + WITH_GRANDCHILDREN + "time.sleep(300)")
    # A supervisor, the rank and its two children, twice; and the launcher.
    assert len(runs.alive()) == 1 + 2 * 4
    launcher.kill()
    launcher.wait()
    runs.assert_nobody_is_left()


def test_a_killed_launcher_leaves_no_stopped_rank(runs):
    launcher = started(runs, "open(f'pid-{rank}', 'w').write(str(os.getpid()))\n" + SLEEPS)
    for rank in range(2):
        os.kill(int((runs.folder / f"pid-{rank}").read_text()), signal.SIGSTOP)
    launcher.kill()
    launcher.wait()
    runs.assert_nobody_is_left()


def test_a_killed_supervisor_takes_its_rank_along_and_ends_the_run(runs, wait_until_ended):
    launcher = started(runs, "open(f'parent-{rank}', 'w').write(str(os.getppid()))\n" + SLEEPS)
    os.kill(int((runs.folder / "parent-1").read_text()), signal.SIGKILL)
    outcome = wait_until_ended(launcher)
    assert outcome.returncode == 128 + 9
    assert "rank 1 of 2 failed first, with signal SIGKILL" in outcome.verdict
    runs.assert_nobody_is_left()


def test_a_rank_s_failure_ends_even_ranks_that_ignore_sigterm(runs):
    fails = "while rank == 1 and not os.path.exists('ready-0'): time.sleep(0.01)\n"
    fails += "if rank == 1: sys.exit(3)\n"
    body = IGNORES + WITH_GRANDCHILDREN + fails + "time.sleep(300)"
    outcome = runs.run("-n", 2, runs.script(body))
    assert outcome.returncode == 3
    assert "rank 1 of 2 failed first, with exit code 3. Rank 0 had to be ended." in outcome.verdict
    runs.assert_nobody_is_left()


def test_the_limit_ends_all_ranks(runs):
    script = runs.script("if rank == 0: marked()\ntime.sleep(300)\n")
    outcome = runs.run("-n", 2, "--timeout", 2.5, script)
    assert outcome.returncode == 124
    assert "received 2.5 s" in outcome.verdict
    assert "ranks 0, 1 of 2 still ran" in outcome.verdict
    assert "`--timeout 25`" in outcome.verdict
    runs.assert_nobody_is_left()


@pytest.mark.slow
def test_what_a_rank_leaves_behind_is_ended(runs, wait_until_ended):
    launcher = started(runs, WITH_GRANDCHILDREN + "marked()")
    assert wait_until_ended(launcher).returncode == 0
    assert runs.alive() == {}


MISSES = """
import pathlib, subprocess, sys
from tfdp.cluster.launch import rank_supervisor
listed, found = rank_supervisor._descendants, []
def late():
    found.append(listed() if len(found) >= 3 else [])
    return found[-1]
rank_supervisor._descendants = late
rank_supervisor.main([sys.argv[1], sys.argv[2], sys.executable, "-c", sys.argv[3]])
"""
LEAVES_A_DAEMON = """
import subprocess
daemon = subprocess.Popen(["sleep", "300"], start_new_session=True)
open("daemon", "w").write(str(daemon.pid))
"""


def test_a_process_that_proc_did_not_list_in_time_is_not_left_behind(tmp_path):
    control, held = os.pipe()
    report, end = os.pipe()
    words = [str(control), str(end), LEAVES_A_DAEMON]
    command = [sys.executable, "-c", MISSES, *words]
    subprocess.run(command, pass_fds=(control, end), cwd=tmp_path, timeout=120, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)
    for descriptor in (control, held, report, end):
        os.close(descriptor)


STOPS = """
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
marked()
open(f"ready-{rank}", "w").close()
time.sleep(300)
"""


def test_sigusr1_is_passed_on_and_ranks_that_stop_are_not_started_again(runs, wait_until_ended):
    launcher = started(runs, STOPS, "--max-restarts", 3)
    launcher.send_signal(signal.SIGUSR1)
    outcome = wait_until_ended(launcher)
    assert outcome.returncode == 75
    assert "ranks 0, 1 of 2 stopped with exit code 75" in outcome.err
    assert "attempts" not in outcome.err
    runs.assert_nobody_is_left()
