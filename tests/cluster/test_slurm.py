"""Slurm: what `srun`, `sbatch` and `salloc` leave in the environment, and lists of nodes.

The lists are checked against a compressor that is written here.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.cluster import expand_nodelist, port_of, slurm
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


# A literal does not end in a digit or start with one, so that numbers stand alone.
names = st.from_regex(r"[a-z]([a-z0-9.-]{0,5}[a-z])?", fullmatch=True)
ranges = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4
)
parts = st.lists(st.one_of(names, ranges), min_size=1, max_size=3)


def compress(part):
    """A part as Slurm writes it."""
    if isinstance(part, str):
        return part
    texts = []
    for first, more, width in part:
        text = f"{first:0{width}}"
        texts.append(f"{text}-{first + more:0{width}}" if more else text)
    return f"[{','.join(texts)}]"


def listed(part):
    """The same part, written out."""
    if isinstance(part, str):
        return [part]
    return [
        f"{number:0{width}}"
        for first, more, width in part
        for number in range(first, first + more + 1)
    ]


@given(st.lists(parts, min_size=1, max_size=4))
def test_expanding_undoes_compressing(entries):
    nodelist = ",".join("".join(map(compress, entry)) for entry in entries)
    nodes = ["".join(node) for entry in entries for node in itertools.product(*map(listed, entry))]
    assert list(expand_nodelist(nodelist)) == nodes


@given(st.lists(names, min_size=1))
def test_plain_names_stay_as_they_are(nodes):
    assert list(expand_nodelist(",".join(nodes))) == nodes


@given(st.text(alphabet="ab01[],- ", max_size=12))
def test_any_other_text_is_expanded_or_refused(text):
    try:
        nodes = expand_nodelist(text)
    except ClusterError as error:
        assert repr(text) in str(error)
    else:
        assert nodes
        assert not set("".join(nodes)) & set("[], ")


@pytest.mark.parametrize(
    ("nodelist", "nodes"),
    [
        ("login", ["login"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-a[1-2]b", ["gpu-a1b", "gpu-a2b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[2,1],m3", ["n2", "n1", "m3"]),
        ("ip-10-0-0-[4-5]", ["ip-10-0-0-4", "ip-10-0-0-5"]),
    ],
)
def test_known_lists(nodelist, nodes):
    assert list(expand_nodelist(nodelist)) == nodes


@pytest.mark.parametrize(
    ("nodelist", "reason"),
    [
        ("", "no name at character 0"),
        ("a,", "no name at character 2"),
        (",a", "no name at character 0"),
        ("a,,b", "no name at character 2"),
        ("a[1-2", "'[' at character 1"),
        ("a1-2]", "']' at character 4"),
        ("a[]", "'[' at character 1"),
        ("a[1,]", "'[' at character 1"),
        ("a[1-2-3]", "'[' at character 1"),
        ("a b", "' ' at character 1"),
        ("a[x]", "'x' is neither a number nor a range"),
        ("a[1-x]", "'1-x' is neither a number nor a range"),
        ("a[3-1]", "'3-1' runs backwards"),
        ("a[0-99999999999]", "more than 65536 nodes"),
        ("a[0-999][0-999]", "more than 65536 nodes"),
    ],
)
def test_a_malformed_list_says_where(nodelist, reason):
    with pytest.raises(ClusterError) as error:
        expand_nodelist(nodelist)
    assert f"but is {nodelist!r}" in str(error.value)
    assert reason in str(error.value)
    assert "TFDP_COORDINATOR=host:port" in str(error.value)
