"""The strategy in clusters of several devices, of an odd number of processes, of another launcher.

Two processes of one device are a cluster of `keras/test_across_processes.py`. A module of
the promise runs in the same clusters: to start one costs as much.
"""

import os
import pathlib
import shutil
import sys

import clusters
import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(620)]

FOLDER = pathlib.Path(__file__).parent
CASES = FOLDER / "in_cluster.py"
PROMISE = FOLDER.parent / "keras"

SHOWN_BY = "keras/test_across_processes.py::test_in_two_processes_the_telling_tests_pass"
# Of several devices in each process: numbering, sums, shares, draws. What only processes agree on
# is the same.
DEVICES = "numbered or reduce or gather or sum or shares or turn or all_replicas or of_rank_0"


@pytest.mark.exhaustive(SHOWN_BY)
def test_processes_of_several_devices_are_one_strategy_and_sum_windows():
    files = [CASES, PROMISE / "test_accumulation.py"]
    options = ["-m", "not exhaustive", "-k", f"test_accumulation or {DEVICES}"]
    clusters.every_rank_passes(files, options, 2, 2)


@pytest.mark.exhaustive(SHOWN_BY)
def test_an_odd_number_of_processes_is_one_strategy_and_has_uneven_and_empty_shares():
    files = [CASES, PROMISE / "test_batches.py"]
    # What ranks are told of each other, two tell as well; weights and masks go with the shares.
    shares = "test_batches and not exhaustive and (any_sizes or every_row)"
    options = ["-k", f"(in_cluster and not named and not told) or ({shares})"]
    clusters.every_rank_passes(files, options, 3)


@pytest.mark.exhaustive("cluster/test_mpi.py::test_a_real_mpirun_starts_one_cluster")
def test_processes_of_mpirun_are_one_strategy():
    beside = str(pathlib.Path(sys.executable).parent)
    mpirun = shutil.which("mpirun", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if mpirun is None:
        pytest.skip("needs an MPI")
    threads = {"TF_NUM_INTEROP_THREADS": "8"}
    # The launcher decides who is which rank; what the ranks then do, it does not know of.
    about = "numbered or resolver or random_states or reduce or gather or writes_files"
    options, launch = ["-m", "not exhaustive", "-k", about], [mpirun, "-n", "2"]
    clusters.every_rank_passes([CASES], options, 2, launch=launch, **threads)
