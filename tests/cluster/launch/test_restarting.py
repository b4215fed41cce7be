"""`tfdp run --max-restarts`: all ranks start again after a failure, and each attempt is told."""

import json
import signal
import time

import pytest

from tfdp.cluster.launch.restarting import Attempt, Restarts, summary
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.cluster.launch.verdict import Outcome

FAILS_TWICE = """
marked()
attempt = int(os.environ["TFDP_RESTART_COUNT"])
print(f"attempt {attempt} at {json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][rank]}")
sys.stdout.flush()
open(f"said-{attempt}-{rank}", "w").close()
while attempt < 2 and not os.path.exists(f"said-{attempt}-{1 - rank}"):
    time.sleep(0.01)
if attempt == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 1 and rank == 0:
    raise ValueError("the disk is full")
if attempt < 2:
    time.sleep(300)
"""


def outcome(**changed):
    return Outcome(
        **{"signal": None, "timed_out": False, "failed": (), "unfinished": (), "absent": ()}
        | changed
    )


@pytest.mark.slow
def test_all_ranks_start_again_after_each_failure_until_they_end_well(runs):
    run = runs.run("-n", 2, "--max-restarts", 3, "--log-dir", "logs", runs.script(FAILS_TWICE))
    assert run.returncode == 0
    for rank in range(2):
        assert [f"[{rank}] attempt {number}" in run.out for number in range(3)] == [True] * 3
    assert "rank 1 of 2 failed first, with signal SIGKILL" in run.err
    assert "all ranks start again in 1 s; restarts left after that: 2." in run.err
    assert "all ranks start again in 2 s; restarts left after that: 1." in run.err
    told = run.err[run.err.index("3 attempts were made") :].splitlines()
    assert "rank 1 of 2 failed first, with signal SIGKILL" in told[1]
    assert "rank 0 of 2 failed first, with exit code 1" in told[2]
    assert told[3].endswith("all ranks ended well.")
    logs = {str(path.relative_to(runs.folder / "logs")) for path in runs.folder.rglob("*.log")}
    folders = ("", "earlier-1/", "earlier-2/")
    assert logs == {f"{folder}rank-{rank}.log" for folder in folders for rank in range(2)}
    runs.assert_nobody_is_left()


@pytest.mark.slow
def test_the_last_failure_s_code_is_the_run_s_when_no_restart_is_left(runs):
    script = runs.script("marked()\nsys.exit(3 + int(os.environ['TFDP_RESTART_COUNT']))\n")
    run = runs.run("-n", 1, "--max-restarts", 1, script)
    assert run.returncode == 4
    assert "2 attempts were made" in run.err
    assert "restarts left after that: 0." in run.err


DIES_AT = """
from tfdp.cluster.rank_status import StepMark
tell(log_dir=".")
mark = StepMark()
attempt = int(os.environ["TFDP_RESTART_COUNT"])
for step in range(1, [7, 9, 9][attempt] + 1):
    if rank == 1:
        mark.write(step)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)  # after which nothing can be told
time.sleep(300)
"""


@pytest.mark.slow
def test_two_deaths_at_one_step_are_said_to_be_no_accident(runs):
    run = runs.run("-n", 2, "--max-restarts", 2, runs.script(DIES_AT))
    assert run.returncode == 137
    assert run.err.count("failed at step 9, too, which is no accident") == 1
    assert "failed at step 7" not in run.err
    lines = (runs.folder / "attempts.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert [(line["first_step"], line["last_step"]) for line in told] == [(1, 7), (1, 9), (1, 9)]
    assert [line["code"] for line in told] == [137] * 3
    assert {line["reason"] for line in told} == {"rank 1 of 2 failed first, with signal SIGKILL."}
    assert all(abs(line["time"] - time.time()) < 600 and line["ranks"] == 2 for line in told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "code"),
    [
        ("marked()\nsys.exit(0)\n", [], 0),
        ("marked()\ntime.sleep(300)\n", ["--timeout", 1], 124),
        ("sys.exit(0)\n", [], 1),
    ],
    ids=["ended well", "the time limit", "no strategy"],
)
def test_nothing_starts_again_after_an_end_that_is_no_failure(script, words, code, runs):
    run = runs.run("-n", 2, "--max-restarts", 3, *words, runs.script(script))
    assert run.returncode == code
    assert "start again" not in run.err


@pytest.mark.slow
@pytest.mark.parametrize("when", ["a rank runs", "before a restart"])
def test_a_signal_to_the_launcher_ends_the_run(when, runs, wait_until_ended):
    body = "time.sleep(300)" if when == "a rank runs" else "sys.exit(5)"
    script = runs.script(f"marked()\nprint('begun', flush=True)\n{body}\n")
    launcher = runs.start("-n", 1, "--max-restarts", 9, script)
    assert b"begun" in launcher.stdout.readline()
    if when == "before a restart":
        while b"start again" not in launcher.stderr.readline():
            pass
    launcher.send_signal(signal.SIGTERM)
    ended = wait_until_ended(launcher)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "start again" not in ended.err
    runs.assert_nobody_is_left()


def test_restarts_before_the_window_are_forgotten():
    now = [0.0]
    restarts = Restarts(2, window_seconds=100, clock=lambda: now[0])
    pauses = []
    for now[0] in (0, 50, 99, 101, 160):
        pauses.append(restarts.pause())
    assert pauses == [1, 2, None, 2, 2]


def test_pauses_double_up_to_a_minute():
    restarts = Restarts(9)
    assert [restarts.pause() for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, None]


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"failed": (1,)}, True),
        ({"launcher_first": True}, True),
        ({}, False),
        ({"failed": (1,), "signal": 15}, False),
        ({"failed": (1,), "timed_out": True}, False),
        ({"absent": (1,)}, False),
    ],
)
def test_a_failure_is_what_the_ranks_do_of_themselves(changed, failed):
    assert Attempt(1, "", outcome(**changed), 1.0, 2).failed == failed


def test_a_run_of_one_attempt_needs_no_summary():
    assert summary([Attempt(1, "rank 0 failed.", outcome(failed=(0,)), 1.0, 1)]) == ""


def test_a_window_without_restarts_is_refused():
    with pytest.raises(ValueError, match=r"received no `max-restarts`; do `--max-restarts 3`"):
        RunOptions(processes=1, command=("train.py",), restart_window_seconds=60.0)


# Rank 1 kills itself in its first lives, of which the file counts; rank 0 waits for what comes.
APART = """
marked()
tell(apart=True)
lives = len([name for name in os.listdir(".") if name.startswith("life-")])
if rank == 1:
    open(f"life-{lives}", "w").close()
    if lives < int(os.environ["DEATHS"]):
        os.kill(os.getpid(), signal.SIGKILL)
else:
    while not os.path.exists(os.environ["WAITS_FOR"]):
        time.sleep(0.01)
    time.sleep(float(os.environ["LONGER"]))
sys.exit(int(os.environ["CODE"]) if rank == 0 else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "restarts", "says"),
    [
        (2, 2, ["it starts again (restarts left after that: 1)", "left after that: 0)"]),
        (2, 1, ["it starts again (restarts left after that: 0)", "train apart from it, and go on"]),
    ],
)
def test_a_rank_that_trains_apart_starts_again_alone(runs, deaths, restarts, says):
    run = runs.run(
        *("-n", 2, "--max-restarts", restarts, "--log-dir", "logs", runs.script(APART)),
        DEATHS=str(deaths),
        WAITS_FOR=f"life-{restarts}",
        LONGER="3",  # longer than a launcher waits where the others have to be ended
        CODE="0",
    )
    assert run.returncode == 0, run.err
    died = [
        line for line in run.err.splitlines() if "ended with signal SIGKILL; the others" in line
    ]
    assert [text in line for text, line in zip(says, died, strict=True)] == [True] * len(says)
    assert "failed first" not in run.err
    runs.assert_nobody_is_left()


# Rank 1 kills itself, and when it comes again it fails before it has told anything.
FAILS_AT_ONCE = """
marked()
if rank == 1 and os.path.exists("life"):
    open("failed", "w").close()
    sys.exit(3)
tell(apart=True)
if rank == 1:
    open("life", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists("failed"):
    time.sleep(0.01)
time.sleep(3)
"""


@pytest.mark.slow
def test_a_rank_that_fails_as_it_comes_again_ends_no_other(runs):
    run = runs.run("-n", 2, "--max-restarts", 1, runs.script(FAILS_AT_ONCE))
    assert run.returncode == 0, run.err
    assert "failed first" not in run.err and "all ranks start again" not in run.err
    runs.assert_nobody_is_left()


# Rank 1 kills itself when rank 0 has ended, and what watches over that has told so and ended too.
LATE = """
marked()
tell(apart=True)
if rank == 0:
    with open("watcher.tmp", "w") as file:
        file.write(str(os.getppid()))
    os.rename("watcher.tmp", "watcher")
    sys.exit(0)
while not os.path.exists("watcher"):
    time.sleep(0.01)
try:
    while open(f"/proc/{open('watcher').read()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
except OSError:
    pass
open(f"life-{os.getpid()}", "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_rank_does_not_start_again_where_others_have_ended_well(runs):
    run = runs.run("-n", 2, "--max-restarts", 2, runs.script(LATE))
    assert run.returncode == 0, run.err
    assert "rank 1 of 2 ended with signal SIGKILL; others have ended well by then" in run.err
    assert len(list(runs.folder.glob("life-*"))) == 1
    runs.assert_nobody_is_left()


@pytest.mark.slow
def test_where_all_ranks_that_train_apart_fail_the_run_fails(runs):
    run = runs.run(
        *("-n", 2, runs.script(APART)), DEATHS="1", WAITS_FOR="life-0", LONGER="0", CODE="3"
    )
    assert run.returncode != 0
    assert "failed first" in run.err
    runs.assert_nobody_is_left()
