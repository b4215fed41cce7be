"""Slurm: what `srun`, `sbatch` and `salloc` leave in the environment."""

import pytest

from tfdp.cluster import port_of, slurm
from tfdp.errors import ClusterError

# sbatch --nodes=2 --ntasks=4: what the script itself sees.
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURM_NODELIST": "node[01-02]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}


def srun(rank, node, local, **more):
    """A task of `srun` in that script."""
    return (
        BATCH_SCRIPT
        | {
            "SLURM_STEP_ID": "0",
            "SLURM_STEPID": "0",
            "SLURM_STEP_NODELIST": "node[01-02]",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
            "SLURM_DISTRIBUTION": "block",
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(local),
        }
        | more
    )


BLOCK = [srun(rank, rank // 2, rank % 2) for rank in range(4)]
CYCLIC = [srun(rank, rank % 2, rank // 2, SLURM_DISTRIBUTION="cyclic") for rank in range(4)]
THREE_NODES = [
    srun(
        rank,
        rank,
        0,
        SLURM_STEP_NODELIST="gpu-a[1-2]b,login",
        SLURM_STEP_NUM_NODES="3",
        SLURM_STEP_NUM_TASKS="3",
        SLURM_STEP_TASKS_PER_NODE="1(x3)",
    )
    for rank in range(3)
]


@pytest.mark.parametrize(
    ("tasks", "host"),
    [(BLOCK, "node01"), (CYCLIC, "node01"), (THREE_NODES, "gpu-a1b")],
    ids=["block", "cyclic", "three nodes"],
)
def test_the_tasks_of_a_step_are_the_ranks_of_one_cluster(tasks, host):
    clusters = [slurm.detect(environ) for environ in tasks]
    assert [cluster.rank for cluster in clusters] == list(range(len(tasks)))
    assert {cluster.world_size for cluster in clusters} == {len(tasks)}
    (coordinator,) = {cluster.coordinator for cluster in clusters}
    assert coordinator.startswith(f"{host}:")
    assert 20000 <= port_of(coordinator) < 60000
    assert {cluster.addresses for cluster in clusters} == {None}
    assert {cluster.source for cluster in clusters} == {"Slurm (SLURM_PROCID)"}


def test_two_steps_of_a_job_have_two_ports():
    first = slurm.detect(srun(1, 0, 1, SLURM_STEP_ID="0"))
    second = slurm.detect(srun(1, 0, 1, SLURM_STEP_ID="1"))
    assert first.coordinator != second.coordinator


def test_a_batch_script_is_no_cluster_whatever_its_number_of_tasks():
    assert slurm.detect(BATCH_SCRIPT) is None


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292"])
def test_an_interactive_batch_or_external_step_is_no_cluster(step):
    assert slurm.detect(srun(0, 0, 0, SLURM_STEP_ID=step)) is None


def test_no_slurm_is_no_cluster():
    assert slurm.detect({}) is None


def test_a_step_of_one_task_is_one_process():
    cluster = slurm.detect(srun(0, 0, 0, SLURM_STEP_NUM_TASKS="1"))
    assert (cluster.world_size, cluster.coordinator) == (1, None)
    assert cluster.source == "Slurm (SLURM_PROCID)"


def test_older_names_are_understood():
    environ = srun(3, 1, 1)
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        del environ[name]
    cluster = slurm.detect(environ)
    assert (cluster.rank, cluster.world_size) == (3, 4)
    assert cluster.coordinator == slurm.detect(BLOCK[0]).coordinator


def test_the_step_s_list_goes_before_the_job_s():
    environ = srun(0, 0, 0, SLURM_STEP_NODELIST="node02", SLURM_JOB_NODELIST="node[01-02]")
    assert slurm.detect(environ).coordinator.startswith("node02:")


def test_the_user_may_choose_the_coordinator():
    environ = srun(2, 1, 0, TFDP_COORDINATOR="10.0.0.1:2222", SLURM_DISTRIBUTION="arbitrary")
    assert slurm.detect(environ).coordinator == "10.0.0.1:2222"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"SLURM_PROCID": "4"}, ["`SLURM_PROCID`", "below `SLURM_STEP_NUM_TASKS`=4", "is 4"]),
        ({"SLURM_PROCID": "x"}, ["`SLURM_PROCID`", "whole number", "'x'", "unset it"]),
        ({"SLURM_PROCID": None}, ["`SLURM_PROCID`", "missing", "environment"]),
        ({"SLURM_STEP_NUM_TASKS": "0"}, ["`SLURM_STEP_NUM_TASKS`", "at least 1", "'0'"]),
        (
            {"SLURM_STEP_NUM_TASKS": None, "SLURM_NTASKS": None},
            ["`SLURM_STEP_NUM_TASKS`", "missing"],
        ),
        (
            {"SLURM_STEP_NODELIST": "node[01-"},
            ["Rank 2", "`SLURM_STEP_NODELIST`", "'node[01-'", "TFDP_COORDINATOR=host:port"],
        ),
        (
            dict.fromkeys(["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]),
            ["Rank 2", "`SLURM_STEP_NODELIST`", "none is", "TFDP_COORDINATOR=host:port"],
        ),
        (
            {"SLURM_DISTRIBUTION": "arbitrary"},
            ["Rank 2", "first node", "'arbitrary'", "--distribution=block", "TFDP_COORDINATOR"],
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NODEID": "1"},
            ["Rank 0", "first node", "`SLURM_NODEID` '1'", "TFDP_COORDINATOR"],
        ),
        ({"TFDP_COORDINATOR": "node01"}, ["Rank 2", "`TFDP_COORDINATOR`", "'node01'"]),
    ],
)
def test_what_is_wrong_in_a_step_is_named_with_its_fix(changes, parts):
    environ = {
        name: value for name, value in (srun(2, 1, 0) | changes).items() if value is not None
    }
    with pytest.raises(ClusterError) as error:
        slurm.detect(environ)
    for part in parts:
        assert part in str(error.value)
