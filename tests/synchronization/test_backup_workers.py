"""Backup workers: in three processes under a real MPI, and what is refused in one."""

import pathlib
import sys

import clusters
import pytest

IN_RANKS = pathlib.Path(__file__).parent / "in_backup_workers.py"


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(620)
def test_ranks_that_come_first_train_as_one_device_given_their_rows():
    pytest.importorskip("mpi4py", reason="needs the extra `mpi`")
    run = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "3", "--engine", "mpi"]
    clusters.every_rank_passes([IN_RANKS], [], 3, launch=[*run, "--timeout", "500", "--"])
