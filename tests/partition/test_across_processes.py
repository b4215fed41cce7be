"""Partitioned programs on every engine, and by every topology.

On TensorFlow's engine `make test` shows two processes: `keras/test_across_processes.py`.
"""

import pathlib
import sys

import clusters
import pytest

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.timeout(620),
    pytest.mark.exhaustive(
        "keras/test_across_processes.py::test_in_two_processes_the_telling_tests_pass"
    ),
]

FILES = [pathlib.Path(__file__).parent / "in_cluster.py"]
OF_ONE_TOPOLOGY = ["-k", "not topology"]


def test_on_tensorflow_s_engine_two_processes_run_programs_together():
    clusters.every_rank_passes(FILES, OF_ONE_TOPOLOGY, 2)


def test_under_mpi_two_processes_run_programs_together():
    pytest.importorskip("mpi4py", reason="needs the extra `mpi`")
    launch = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2", "--engine", "mpi"]
    launch += ["--timeout", "500", "--"]
    clusters.every_rank_passes(FILES, OF_ONE_TOPOLOGY, 2, launch=launch)


def test_by_every_topology_processes_of_several_devices_run_programs_together():
    clusters.every_rank_passes(FILES, ["-k", "topology"], 2, 2)
