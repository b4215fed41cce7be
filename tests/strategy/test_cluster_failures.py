"""Whatever goes wrong on one rank of a cluster, every rank ends with an error that names it."""

import pathlib
import re
import subprocess
import sys

import pytest
import tiers

pytestmark = [pytest.mark.multiprocess]

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "goes_wrong.py"


def run(how, ranks=2):
    """What each rank got, by rank, and all output."""
    command = [
        sys.executable,
        "-m",
        "tfdp.tools.cli",
        "run",
        "-n",
        str(ranks),
        "--timeout",
        "300",
        "--",
    ]
    ended = subprocess.run(
        [*command, str(SCRIPT), how], capture_output=True, text=True, timeout=350, check=False
    )
    output = ended.stdout + ended.stderr
    got = re.findall(r"^\[(\d)\] GOT (.*)$", output, re.MULTILINE)
    assert ended.returncode not in (0, 124), output
    return {int(rank): text for rank, text in got}, output


def test_a_killed_rank_is_named_on_every_other_rank():
    texts, output = run("killed")
    assert texts.keys() == {0}
    assert texts[0].startswith("RankLostError: Rank 0: lost rank 1"), output
    assert "SIGKILL" in output.splitlines()[-1] or "SIGKILL" in output.splitlines()[-2]


def test_a_stopped_rank_is_named_with_operation_and_step():
    texts, _ = run("stopped")
    assert texts[0].startswith("CollectiveTimeoutError: Rank 0: all_reduce of ")
    assert re.search(r"of step \d+ must have every rank within 6 s, but rank 1 did not", texts[0])


@pytest.mark.exhaustive("test_a_killed_rank_is_named_on_every_other_rank")
def test_a_killed_rank_of_a_ring_is_named_on_the_others():
    texts, output = run("killed in a ring", ranks=3)
    assert sorted(texts) == [0, 2], output
    for rank, text in texts.items():
        assert text.startswith(f"RankLostError: Rank {rank}: lost rank 1"), output


@pytest.mark.exhaustive("test_a_stopped_rank_is_named_with_operation_and_step")
def test_a_stopped_rank_of_a_ring_is_named_with_the_operation():
    texts, output = run("stopped in a ring")
    # The others wait where the ranks of a step meet first, which is in no ring.
    named = (
        r"all_reduce of int64 .* of step \d+ must have every rank within 6 s, but rank 1 did not"
    )
    assert re.search(named, texts[0]), output


@pytest.mark.exhaustive("test_a_stopped_rank_is_named_with_operation_and_step")
def test_a_rank_that_sleeps_too_long_is_named_and_ends_too():
    texts, _ = run("sleeps")
    assert "rank 1 did not take part" in texts[0]
    assert "outside any collective" in texts[0]


def test_the_error_of_a_rank_reaches_the_others():
    texts, output = run("raises")
    assert texts[1] == "ValueError: a mistake in a callback"
    assert "lost rank 1" in texts[0]
    assert "a mistake in a callback" in texts[0]
    assert "rank 1 of 2 failed first" in output


@pytest.mark.parametrize(
    ("how", "error"),
    tiers.first_of(
        ("goes on from an error", "a mistake in a callback"),
        ("goes on from an error in a loop", "a mistake in a step"),
    ),
)
def test_a_rank_that_alone_catches_an_error_and_goes_on_is_named(how, error):
    texts, output = run(how)
    assert sorted(texts) == [0, 1], output
    assert "lost rank 1: it left step" in texts[0], output
    assert f"ValueError: {error}, alone" in texts[0], output


def test_ranks_that_catch_the_error_of_a_step_of_nccl_and_go_on_are_refused():
    """Without NCCL they may: all have come from an error."""
    texts, output = run("goes on from a step of NCCL")
    assert sorted(texts) == [0, 1], output
    refused = {rank: text for rank, text in texts.items() if text.startswith("ClusterError")}
    assert refused, output
    for rank, text in refused.items():
        assert f"Rank {rank}: after a step that failed, NCCL needs new processes" in text, output
        assert "a mistake in the data" in text or "CheckNumerics" in text, output
        assert "--max-restarts 1" in text, output
    for text in (texts[rank] for rank in texts.keys() - refused.keys()):
        assert "lost rank" in text and "NCCL needs new processes" in text, output


@pytest.mark.exhaustive(
    "cluster/test_watchdog.py::test_ranks_that_wait_for_each_other_are_told_what_differs"
)
@pytest.mark.parametrize(
    ("how", "setting"),
    [
        ("stops in an epoch", "`stop_training`"),
        ("stops after an epoch", "`stop_training`"),
        ("goes eager", "`tf.config.run_functions_eagerly`"),
    ],
)
def test_what_one_rank_alone_sets_is_named_long_before_the_deadline(how, setting):
    texts, output = run(how)
    assert sorted(texts) == [0, 1], output
    for text in texts.values():
        assert text.startswith("RankMismatchError"), output
        assert setting in text and "must be alike on all ranks" in text, output
        assert "False on rank 0 and True on rank 1" in text, output


@pytest.mark.exhaustive(
    "cluster/test_watchdog.py::test_a_rank_that_has_ended_is_lost_to_a_collective_and_where_it_was_is_told"
)
def test_a_rank_that_ends_early_is_named():
    texts, output = run("exits")
    assert "lost rank 1: it has ended (in step 3, outside any collective)" in texts[0]
    assert "rank 1 of 2 ended with exit code 0 before the others were done" in output


@pytest.mark.exhaustive("test_a_killed_rank_is_named_on_every_other_rank")
def test_a_rank_that_never_trains_is_named():
    texts, _ = run("absent")
    assert "lost rank 1: it has ended" in texts[0]


@pytest.mark.exhaustive(
    "keras/test_across_processes.py::test_in_two_processes_the_telling_tests_pass"
)
@pytest.mark.parametrize(
    ("how", "error", "both", "named"),
    [
        ("shape", "RankMismatchError", "shape", ["[3, 5]", "[3, 4]", "kernel"]),
        # As other versions are: see `communication/collectives/test_cluster_processes.py`.
        ("devices", "ClusterError", "number of devices", ["rank 0 has 1", "has 2"]),
    ],
)
def test_what_must_be_alike_is_named_with_both_values(how, error, both, named):
    texts, output = run(how)
    assert texts, output
    assert any(text.startswith(error) for text in texts.values()), output
    for text in texts.values():
        assert both in text, output
        assert all(part in text for part in named), output


def test_another_program_on_one_rank_is_named_on_both_before_it_hangs():
    texts, output = run("one more operation")
    assert sorted(texts) == [0, 1], output
    for rank, text in texts.items():
        assert text.startswith(f"CollectiveMismatchError: Rank {rank}: every rank must"), output
        assert "is Sin" in text or "and Sin in" in text, output


@pytest.mark.parametrize(
    ("how", "error"),
    tiers.first_of(
        ("threads make models", "RankMismatchError: Rank 1: every rank must make the same"),
        ("threads train", "RankMismatchError: Rank [01]: `fit` must be alike on all ranks"),
        ("threads train at once", "CollectiveMismatchError: Rank [01]: .* one thread must run"),
    ),
)
def test_threads_whose_order_differs_between_ranks_are_named_and_nobody_waits(how, error):
    texts, output = run(how)
    assert texts, output  # a rank may be ended before it has said what it got
    for text in texts.values():
        assert re.match(error, text), output
        assert "`thread of " in text, output
        assert re.search("one after the +other, in the same order on all ranks", text), output


@pytest.mark.exhaustive(
    "communication/collectives/test_runtime.py::test_a_runtime_that_is_in_use_cannot_be_started"
)
def test_a_strategy_made_after_tensorflow_started_is_an_error_with_the_fix():
    texts, output = run("too late")
    assert "must be made before TensorFlow is used" in texts[1], output
    assert "lost rank 1" in texts[0], output
