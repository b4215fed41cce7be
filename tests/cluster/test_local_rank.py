"""The place of a rank on its host, by what launchers set."""

import pytest

from tfdp.cluster.local_rank import local_rank
from tfdp.errors import ClusterError

SRUN = {"SLURM_STEP_ID": "0", "SLURM_LOCALID": "2", "SLURM_NODEID": "3"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (1, 4)),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2)),
        ({"MPI_LOCALRANKID": "0"}, None),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x3),3"}, (2, 3)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2,1(x2),4"}, (2, 4)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),  # not of this step
        (SRUN, None),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x4)", "SLURM_STEP_ID": "4294967291"}, None),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "TFDP_RUN_STATUS": "/tmp/x"}, None),
    ],
)
def test_the_place_is_told_by_the_launcher_that_started_the_ranks(environ, place):
    assert local_rank(environ) == place


def test_a_malformed_place_is_named():
    with pytest.raises(ClusterError, match=r"`MPI_LOCALNRANKS` must be a whole number"):
        local_rank({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "many"})
