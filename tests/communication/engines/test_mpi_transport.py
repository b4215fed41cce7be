"""The engine on a real MPI: its own cases, and those of every cluster; what goes wrong, too."""

import os
import pathlib
import re
import subprocess
import sys

import clusters
import pytest

pytest.importorskip("mpi4py", reason="needs the extra `mpi`")

TESTS = pathlib.Path(__file__).parent.parent.parent
IN_MPI = TESTS / "communication" / "engines" / "in_mpi.py"
IN_CLUSTER = TESTS / "strategy" / "in_cluster.py"
GOES_WRONG = TESTS / "strategy" / "scripts" / "goes_wrong.py"
# What replicas do together in graphs, and what they do after an error.
FEW = "replicas_sum or trace_again or same_error or delay"
OF_THE_ENGINE = f"{FEW} or reduce or gather or topology_sums or do_not_mix or ends_first or decided"
OF_THE_ENGINE += " or gossip"

pytestmark = [pytest.mark.multiprocess]


def tfdp_run(*words):
    return [sys.executable, "-m", "tfdp.tools.cli", "run", *words, "--engine", "mpi"]


def test_ranks_under_mpi_are_one_strategy_with_one_thread_for_operations():
    launch = [*tfdp_run("-n", "2"), "--timeout", "500", "--"]
    options = ["-m", "not exhaustive", "-k", f"in_mpi or {FEW}"]
    environ = {"TF_NUM_INTEROP_THREADS": "1"}
    clusters.every_rank_passes([IN_MPI, IN_CLUSTER], options, 2, launch=launch, **environ)


@pytest.mark.exhaustive("test_ranks_under_mpi_are_one_strategy_with_one_thread_for_operations")
def test_an_odd_number_of_ranks_of_several_devices_under_mpi_is_one_strategy():
    launch = [*tfdp_run("-n", "3", "--devices-per-process", "2"), "--timeout", "500", "--"]
    # With two examples or fewer each, workers that use Adam are too sensitive to rounding.
    about = f"(in_mpi and not by_themselves) or {OF_THE_ENGINE}"
    options = ["-m", "not exhaustive", "-k", about]
    clusters.every_rank_passes([IN_MPI, IN_CLUSTER], options, 3, 2, launch=launch)


def goes_wrong(how):
    """What each rank got, by rank, and all output."""
    ended = subprocess.run(
        [*tfdp_run("-n", "2"), "--timeout", "300", "--", str(GOES_WRONG), how],
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
        env=dict(os.environ),
    )
    output = ended.stdout + ended.stderr
    got = re.findall(r"^\[(\d)\] GOT (.*)$", output, re.MULTILINE)
    assert ended.returncode not in (0, 124), output
    return {int(rank): text for rank, text in got}, output


def test_a_killed_rank_is_named_by_the_other():
    texts, output = goes_wrong("killed")
    assert texts.keys() == {0}, output
    assert texts[0].startswith("RankLostError: Rank 0: lost rank 1"), output
    assert "SIGKILL" in output.splitlines()[-1] or "SIGKILL" in output.splitlines()[-2], output


@pytest.mark.exhaustive("test_a_killed_rank_is_named_by_the_other")
def test_a_stopped_rank_is_named_with_the_operation_at_the_deadline():
    texts, output = goes_wrong("stopped")
    assert texts[0].startswith("CollectiveTimeoutError: Rank 0: all_reduce of "), output


def test_ranks_that_ask_for_other_engines_are_told_before_one_waits_in_mpi():
    texts, output = goes_wrong("engines")
    for rank in (0, 1):
        assert f"RankMismatchError: Rank {rank}: the options of a strategy" in texts[rank], output
        assert "engine is 'mpi' on rank 0 and 'tensorflow' on rank 1" in texts[rank], output


@pytest.mark.exhaustive("test_a_killed_rank_is_named_by_the_other")
def test_the_error_of_a_rank_reaches_the_other():
    texts, output = goes_wrong("raises")
    assert texts[1] == "ValueError: a mistake in a callback", output
    assert "lost rank 1" in texts[0], output


@pytest.mark.exhaustive("test_a_killed_rank_is_named_by_the_other")
def test_a_rank_that_ends_early_is_named():
    texts, output = goes_wrong("exits")
    assert "rank 1" in texts[0], output
