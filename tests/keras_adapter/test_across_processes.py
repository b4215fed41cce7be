"""The promise holds across processes: its own tests, run in every process of a cluster at once.

So are those of the strategy there, `strategy/in_cluster.py`: to start a cluster costs as much.
"""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

FOLDER = pathlib.Path(__file__).parent

# What does not depend on where the replicas are, or looks into one process.
ELSEWHERE = {
    "test_across_processes",
    "test_bad_input",
    "test_executed_reductions",
    "test_batch_and_rate",
    "test_hooks",
    "test_layouts",
    "test_philox",
    "test_scopes",
    "test_provenance",
}


def modules():
    """The promise's test modules."""
    return [path for path in sorted(FOLDER.glob("test_*.py")) if path.stem not in ELSEWHERE]


def passes(files, processes, devices, chosen, **environ):
    """Runs the `chosen` tests of `files` in a cluster; every rank must pass every one.

    Args:
      files: Test modules.
      processes: Number of ranks.
      devices: Replicas of each rank.
      chosen: An expression of markers.
      **environ: Environment variables.
    """
    command = [sys.executable, "-m", "tfdp.cli", "run", "-n", str(processes)]
    command += ["--devices-per-process", str(devices), "--timeout", "580", "--"]
    command += [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["-q", "-W", "ignore", "--maxfail=1", "-m", chosen, *map(str, files)]
    ended = subprocess.run(
        command,
        env={**os.environ, **environ, "TFDP_TESTS_CLUSTER_REPLICAS": str(processes * devices)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output[-6000:]
    for rank in range(processes):
        (summary,) = [
            line
            for line in output.splitlines()
            if line.startswith(f"[{rank}]") and " passed" in line
        ]
        assert " failed" not in summary


FIRST_CASES = {"TFDP_TESTS_ONLY_FIRST_CASES": "1"}


@pytest.mark.timeout(620)
def test_in_two_processes_the_telling_tests_pass():
    files = [FOLDER.parent / "strategy" / "in_cluster.py", *modules()]
    passes(files, 2, 1, "telling", **FIRST_CASES)


@pytest.mark.exhaustive("test_in_two_processes_the_telling_tests_pass")
@pytest.mark.timeout(620)
def test_in_two_processes_the_telling_foreign_programs_train_as_on_one_device():
    passes([FOLDER.parent / "foreign" / "test_programs.py"], 2, 1, "telling")


# Modules whose mechanisms depend on where the replicas are: each process reads its own data, writes
# or leaves files to rank 0, draws, gathers. The others compute with sums, which the telling tests
# show.
ABOUT_PROCESSES = {
    *("test_callbacks", "test_corners", "test_custom_loops", "test_data_errors", "test_feeding"),
    *("test_inputs", "test_metrics", "test_predictions", "test_random", "test_saving"),
    *("test_sparse_inputs", "test_stand_ins"),
}


@pytest.mark.exhaustive("test_in_two_processes_the_telling_tests_pass")
@pytest.mark.timeout(620)
def test_in_two_processes_all_tests_pass_that_are_about_processes():
    files = [path for path in modules() if path.stem in ABOUT_PROCESSES]
    assert len(files) == len(ABOUT_PROCESSES)
    passes(files, 2, 1, "not exhaustive and not telling", **FIRST_CASES)


# Uneven and empty shares on an odd number of ranks; a window's sum over devices and processes.
SOME = {
    (3, 1): ["test_batches"],
    (2, 2): ["test_accumulation"],
}


@pytest.mark.exhaustive("test_in_two_processes_the_telling_tests_pass")
@pytest.mark.timeout(620)
@pytest.mark.parametrize(("processes", "devices"), SOME)
def test_in_more_processes_of_more_devices_some_tests_pass(processes, devices):
    files = [FOLDER / f"{name}.py" for name in SOME[processes, devices]]
    passes(files, processes, devices, "not exhaustive")
