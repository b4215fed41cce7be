"""Which description of a cluster goes before which, and the place of a rank on its host.

Finding it needs no TensorFlow.
"""

import json
import subprocess
import sys
import types

import pytest

from tfdp.cluster import Cluster, detect, rank_in_environment
from tfdp.cluster.environment import local_rank
from tfdp.errors import ClusterError

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "slurm[1-2]",
}
MPI = {"PMI_RANK": "1", "PMI_SIZE": "2", "TFDP_COORDINATOR": "mpi:2000"}
TF_CONFIG = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"worker": ["tf-config-0:1", "tf-config-1:1"]},
            "task": {"type": "worker", "index": 1},
        }
    )
}
RESOLVER = types.SimpleNamespace(
    cluster_spec=lambda: types.SimpleNamespace(as_dict=lambda: {"worker": ["r:1", "s:1"]}),
    task_type="worker",
    task_id=1,
)


def test_without_any_there_is_one_process():
    assert detect({}) == Cluster.single()


@pytest.mark.parametrize(
    ("environ", "resolver", "source"),
    [
        (SLURM | MPI | TF_CONFIG, RESOLVER, "cluster_resolver"),
        (SLURM | MPI | TF_CONFIG, None, "TF_CONFIG"),
        (SLURM | MPI, None, "MPI (PMI_RANK)"),
        (SLURM, None, "Slurm (SLURM_PROCID)"),
        (SLURM | {"TF_CONFIG": "{}"}, None, "Slurm (SLURM_PROCID)"),
    ],
)
def test_the_more_explicit_goes_first(environ, resolver, source):
    cluster = detect(environ, resolver)
    assert cluster.source == source
    assert (cluster.rank, cluster.world_size) == (1, 2)


def test_a_malformed_description_is_an_error_even_if_another_is_there():
    with pytest.raises(ClusterError, match="`TF_CONFIG` must be JSON"):
        detect(SLURM | {"TF_CONFIG": "{"})


def test_the_process_own_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG["TF_CONFIG"])
    assert detect().coordinator == "tf-config-0:1"


def test_detecting_imports_no_tensorflow_and_no_mpi():
    code = (
        "import sys; from tfdp.cluster import detect; detect({}); "
        "print({'tensorflow', 'keras', 'mpi4py', 'numpy'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", code]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


@pytest.mark.parametrize("environ", [{}, SLURM, MPI, TF_CONFIG, {**SLURM, **MPI}])
def test_the_rank_alone_is_that_of_the_cluster(environ):
    assert rank_in_environment(environ) == detect(environ).rank


def test_the_rank_is_known_where_the_rest_would_have_to_be_asked_of_mpi():
    assert rank_in_environment({"PMIX_RANK": "3"}) == 3


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
