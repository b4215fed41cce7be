"""The strategy in clusters of several devices, of an odd number of processes, of another launcher.

Two processes of one device are a cluster of `keras_adapter/test_across_processes.py`.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


CASES = pathlib.Path(__file__).parent / "in_cluster.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
PYTEST += ["-W", "ignore", "--maxfail=1", str(CASES)]


def every_rank_passes(launch, replicas, processes, *options, **environ):
    """Runs the cases of `in_cluster.py` in every process that `launch` starts."""
    ended = subprocess.run(
        [*launch, *PYTEST, *options],
        env={**os.environ, **environ, "TFDP_TESTS_CLUSTER_REPLICAS": str(replicas)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    assert ended.stdout.count(" passed") == processes


def tfdp_run(processes, devices):
    """What starts a cluster."""
    launch = [sys.executable, "-m", "tfdp.cli", "run", "-n", str(processes)]
    return [*launch, "--devices-per-process", str(devices), "--timeout", "280", "--"]


SHOWN_BY = "keras_adapter/test_across_processes.py::test_in_two_processes_the_telling_tests_pass"
# Of several devices in each process: numbering, sums, shares, draws. What only processes agree on
# is the same.
DEVICES = "numbered or reduce or gather or sum or shares or turn or all_replicas or of_rank_0"


@pytest.mark.exhaustive(SHOWN_BY)
def test_processes_of_several_devices_are_one_strategy():
    every_rank_passes(tfdp_run(2, 2), 4, 2, "-m", "not exhaustive", "-k", DEVICES)


@pytest.mark.exhaustive(SHOWN_BY)
def test_an_odd_number_of_processes_is_one_strategy():
    every_rank_passes(tfdp_run(3, 1), 3, 3)


@pytest.mark.exhaustive("cluster/test_mpi.py::test_a_real_mpirun_starts_one_cluster")
def test_processes_of_mpirun_are_one_strategy():
    beside = str(pathlib.Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if mpirun is None:
        pytest.skip("needs an MPI")
    threads = {"TF_NUM_INTEROP_THREADS": "8"}
    # The launcher decides who is which rank; what the ranks then do, it does not know of.
    about = "numbered or resolver or random_states or reduce or gather or writes_files"
    every_rank_passes([mpirun, "-n", "2"], 2, 2, "-m", "not exhaustive", "-k", about, **threads)
