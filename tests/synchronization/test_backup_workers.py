"""Backup workers in three processes under a real MPI."""

import pathlib
import sys

import clusters
import pytest

pytest.importorskip("mpi4py", reason="needs the extra `mpi`")

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.timeout(620)]

IN_RANKS = pathlib.Path(__file__).parent / "in_backup_workers.py"
LAUNCH = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "3", "--engine", "mpi"]
LAUNCH += ["--timeout", "500", "--"]


def test_ranks_that_come_first_train_as_one_device_given_their_rows():
    clusters.every_rank_passes([IN_RANKS], ["-m", "not exhaustive"], 3, launch=LAUNCH)


@pytest.mark.exhaustive("test_ranks_that_come_first_train_as_one_device_given_their_rows")
def test_they_do_with_other_optimizers_and_losses():
    clusters.every_rank_passes([IN_RANKS], ["-m", "exhaustive"], 3, launch=LAUNCH)
