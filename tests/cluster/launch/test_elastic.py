"""`tfdp run -n MIN:MAX`: which ranks are done without, and how others come."""

import signal

import pytest
import tiers

from tfdp.base import gpus
from tfdp.cluster.launch.places import Places
from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.run_options import RunOptions, Span
from tfdp.cluster.launch.verdict import Outcome

pytestmark = pytest.mark.multiprocess

# What a training with a Checkpoint does, without TensorFlow.
STOPPABLE = """
import pathlib
marked()
attempt = int(os.environ["TFDP_RESTART_COUNT"])
world_size = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
slots = pathlib.Path("slots")
stop = pathlib.Path(f"stop-{attempt}")
signal.signal(signal.SIGUSR1, lambda *_: stop.touch())
tell(can_stop=True)
print(f"attempt {attempt} of {world_size} ranks", flush=True)
def train(seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if stop.exists():
            sys.exit(75)
        time.sleep(0.02)
"""

GOES_3_1_2 = (
    STOPPABLE
    + """
if attempt == 0:
    pathlib.Path(f"began-{rank}").touch()
    while rank == 2 and len(list(pathlib.Path().glob("began-*"))) < 3:
        time.sleep(0.02)
    if rank == 2:
        slots.write_text("1")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
if attempt == 1:
    slots.write_text("2")
    train()
"""
)

DISCOVER = ("--discover", "cat slots", "--discover-every", 0.1)


def elastic(runs, script, *words, ranks="1:3", restarts=2):
    (runs.folder / "slots").write_text(ranks[-1])
    return runs.run("-n", ranks, "--max-restarts", restarts, *words, runs.script(script))


def test_a_run_goes_on_with_the_ranks_that_are_left_and_takes_others_in(runs):
    run = elastic(runs, GOES_3_1_2, *DISCOVER)
    assert run.returncode == 0, run.err
    for attempt, ranks in enumerate((3, 1, 2)):
        assert run.out.count(f"attempt {attempt} of {ranks} ranks") == ranks
    assert "rank 2 of 3 failed first, with signal SIGKILL" in run.err
    assert "rank 0 of 1 stopped at a checkpoint, for another number of ranks may run." in run.err
    told = run.err[run.err.index("3 attempts were made") :].splitlines()
    assert [line.split(",")[0].strip() for line in told[1:4]] == [
        "1. 3 ranks",
        "2. 1 rank",
        "3. 2 ranks",
    ]
    runs.assert_nobody_is_left()


def test_a_training_that_keeps_nothing_is_not_stopped(runs):
    script = STOPPABLE + "tell(can_stop=False)\nslots.write_text('2')\ntrain(2)\n"
    run = elastic(runs, script, *DISCOVER)
    assert run.returncode == 0, run.err
    assert "attempts were made" not in run.err
    assert not (runs.folder / "stop-0").exists()


def test_a_training_that_ends_while_it_is_asked_to_stop_is_no_failure(runs):
    script = STOPPABLE + (
        "signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # its `fit` has ended\n"
        "slots.write_text('2')\ntrain(300 if attempt == 0 else 0)\n"
    )
    (runs.folder / "slots").write_text("1")
    words = ("-n", "1:2", "--max-restarts", 1, *DISCOVER)
    run = runs.run(*words, runs.script(script))
    assert run.returncode == 0, run.err
    assert "rank 0 of 1 had just ended the training when asked to stop at a ch" in run.err
    assert "restarts left" not in run.err


def test_a_signal_of_somebody_s_own_ends_the_run_also_where_others_come(runs, wait_until_ended):
    (runs.folder / "slots").write_text("1")
    launcher = runs.start(
        *("-n", "1:2", "--max-restarts", 1, *DISCOVER), runs.script(STOPPABLE + "train()\n")
    )
    assert b"attempt 0" in launcher.stdout.readline()
    launcher.send_signal(signal.SIGUSR1)
    (runs.folder / "slots").write_text("2")
    run = wait_until_ended(launcher)
    assert run.returncode == 75
    assert "attempts were made" not in run.err


@pytest.mark.parametrize("least", tiers.first_of(1, 2))
def test_a_rank_that_fails_at_its_start_twice_is_done_without(runs, least):
    script = "if rank == 1: sys.exit(7)\nmarked()\ntime.sleep(3 if world > 1 else 0)\n"
    script = 'world = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])\n' + script
    run = elastic(runs, script, ranks=f"{least}:2")
    said = "rank 1 failed at the start in two attempts in a row; the run goes on without, with 1 r"
    assert (said in run.err) == (least == 1)
    assert run.returncode == (0 if least == 1 else 7)


def test_too_few_places_are_waited_for_until_a_deadline(runs):
    (runs.folder / "slots").write_text("1")
    words = ("-n", "2:3", "--max-restarts", 1, *DISCOVER, "--join-timeout", 0.5)
    run = runs.run(*words, runs.script("marked()"))
    assert run.returncode == 1
    assert "at least 2 ranks must run, and there are places for 1; waits 0.5 s at mo" in run.err
    assert "received -n 2:3, and after 0.5 s places for 1; lower MIN" in run.err
    assert run.out == ""


def test_a_command_that_says_no_number_is_an_error_at_the_start(runs):
    words = ("-n", "1:2", "--max-restarts", 1, "--discover", "echo many")
    run = runs.run(*words, runs.script("marked()"))
    assert run.returncode == 2
    assert "received 'many' of 'echo many'" in run.err


@pytest.mark.exhaustive("test_a_command_that_says_no_number_is_an_error_at_the_start")
def test_a_command_that_fails_later_is_named_once_and_its_last_answer_counts(runs):
    fails = ("--discover", "cat slots || { echo >> failed; exit 1; }", "--discover-every", 0.1)
    script = STOPPABLE + (
        "slots.unlink()\n"
        "failed = pathlib.Path('failed')\n"
        "while not failed.exists() or len(failed.read_text()) < 3:\n"
        "    time.sleep(0.02)\n"
    )
    run = elastic(runs, script, *fails, ranks="1:1")
    assert run.returncode == 0
    assert run.err.count("received exit code 1 and") == 1
    assert "Until then its last answer counts: 1." in run.err


def ended(ranks, failed_at_start):
    how = Outcome(signal=None, timed_out=False, failed=failed_at_start, unfinished=(), absent=())
    return Attempt(1, "", how, 1.0, ranks, failed_at_start)


def places(least, most):
    options = RunOptions(Span(least, most), ("x.py",), max_restarts=1)
    return Places(options, {"CUDA_VISIBLE_DEVICES": "-1"}, print)


def test_where_all_ranks_fail_at_their_start_fewer_are_not_tried():
    some = places(1, 2)
    for _ in range(3):
        assert len(some.now()) == 2
        assert some.learn(ended(2, (0, 1))) == ""


def test_two_failures_at_the_start_must_follow_each_other():
    some = places(1, 3)
    for failed in ((1,), (), (1,), (2,), (1,)):
        some.now()
        assert some.learn(ended(3, failed)) == ""
    some.now()
    assert "rank 1 failed" in some.learn(ended(3, (1,)))
    assert len(some.now()) == 2


def test_the_gpus_of_a_rank_that_fails_are_done_without(monkeypatch):
    monkeypatch.setattr(gpus, "_listed", lambda environ: list("012345"))
    options = RunOptions(Span(1, 3), ("x.py",), max_restarts=1, gpus_per_process=2)
    some = Places(options, {}, print)
    for _ in range(2):
        assert some.now() == ["0,1", "2,3", "4,5"]
        said = some.learn(ended(3, (1,)))
    assert "(GPUs: 2,3), with 2 ranks" in said
    assert some.now() == ["0,1", "4,5"]
    monkeypatch.setattr(gpus, "_listed", lambda environ: list("01"))
    assert some.now() == ["0,1"]
    monkeypatch.setattr(gpus, "_listed", lambda environ: [])
    assert some.now() == []


def test_what_the_system_did_not_give_is_done_without():
    some = places(1, 4)
    assert len(some.now()) == 4
    assert "at most 2 ranks" in some.could_not_start(2)
    assert len(some.now()) == 2


def test_threads_that_cannot_be_had_lower_the_number_and_never_loop(runs):
    """The sixth thread of the launcher, and in the second case every one, cannot be started."""
    for fails, code, words in (
        ("count[0] == 6", 0, "at most 2 ranks"),
        ("True", 1, "after 0 ranks"),
    ):
        run = runs.run(
            *("-n", "1:3", "--max-restarts", 1, runs.script("marked()")),
            change=f"""
            from tfdp.cluster.launch import output
            real, count = output.RankStream.start, [0]
            def start(self):
                count[0] += 1
                if {fails}:
                    raise RuntimeError("can't start new thread")
                real(self)
            output.RankStream.start = start
            """,
        )
        assert (run.returncode, "Traceback" in run.err) == (code, False), run.err
        assert words in run.err
        runs.assert_nobody_is_left()


def test_a_number_beyond_the_ports_is_lowered(runs):
    run = runs.run(
        *("-n", "1:3", "--max-restarts", 1, runs.script("marked()")),
        change="""
        from tfdp.cluster.launch import rank_start
        rank_start._PORTS = range(31000, 31002)
        """,
    )
    assert run.returncode == 0, run.err
    assert "received 3, and after 2 ports" in run.err
    assert "at most 2 ranks" in run.err


def test_a_gpu_that_is_gone_and_was_done_without_counts_once(monkeypatch):
    monkeypatch.setattr(gpus, "_listed", lambda environ: list("012"))
    options = RunOptions(
        Span(1, 3), ("x.py",), max_restarts=1, discover="echo 3", gpus_per_process=1
    )
    with Places(options, {}, print) as some:
        for _ in range(2):
            assert len(some.now()) == 3
            some.learn(ended(3, (2,)))
        monkeypatch.setattr(gpus, "_listed", lambda environ: list("01"))
        assert some.now() == ["0", "1"]
        assert not some.wants_another_number(2)


def test_a_signal_ends_the_first_question_and_what_it_has_started(runs, wait_until_ended):
    words = ("-n", "1:2", "--max-restarts", 1, "--discover", "touch asked; sleep 300 & sleep 300")
    launcher = runs.start(*words, runs.script("marked()"))
    runs.wait_for("asked")
    launcher.send_signal(signal.SIGTERM)
    run = wait_until_ended(launcher)
    assert run.returncode == 143
    runs.assert_nobody_is_left()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_restarts": 0}, r"received -n 1:2 and no `max-restarts`; do `--max-restarts 3`"),
        ({"processes": 2, "discover": "echo 1"}, r"`discover` must come with `-n MIN:MAX`"),
        ({"discover_every_seconds": 1.0}, r"`discover-every` must come with `discover`"),
        ({"processes": 2, "join_timeout_seconds": 1.0}, r"`join-timeout` must come with"),
        ({"processes": Span(0, 2)}, r"`-n` must be at least 1; received '0,2'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, words):
    given = {"processes": Span(1, 2), "max_restarts": 1, **options}
    with pytest.raises(ValueError, match=words):
        RunOptions(command=("x.py",), **given)
