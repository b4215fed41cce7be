"""Which devices a strategy trains on. The process has CPU:0 to CPU:4 and no GPU."""

import types

import pytest
import tensorflow as tf

import tfdp
from tfdp.communication.replicas import OneProcess
from tfdp.errors import ClusterError
from tfdp.strategy import replica_devices


@pytest.mark.parametrize(
    ("given", "indices"),
    [
        (None, [0]),
        (["CPU:0"], [0]),
        (("CPU:2", "CPU:0"), [2, 0]),
        (["/device:CPU:1", "/cpu:3"], [1, 3]),
        (["cpu:0", "CPU:1"], [0, 1]),
        (["CPU", "CPU:1"], [0, 1]),
        (["/job:localhost/replica:0/task:0/device:CPU:1"], [1]),
        (["/task:0/device:CPU:3"], [3]),
    ],
)
def test_names_keep_their_order_and_are_all_written_alike(given, indices):
    present = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert replica_devices.resolve(given) == tuple(
        replica_devices.resolve([present[i]])[0] for i in indices
    )
    assert [
        tf.DeviceSpec.from_string(n).device_index for n in replica_devices.resolve(given)
    ] == indices


def test_the_devices_of_a_strategy_make_another_one():
    first = tfdp.DataParallelStrategy(["CPU:1", "CPU:3"])
    second = tfdp.DataParallelStrategy(first.extended.worker_devices)
    assert second.extended.worker_devices == first.extended.worker_devices
    assert first.extended.worker_devices[0] == "/job:localhost/replica:0/task:0/device:CPU:1"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("CPU:0", TypeError, r"must be a list of device names, but received 'CPU:0'"),
        (2, TypeError, r"must be a list of device names, but received 2"),
        ([], ValueError, r"must name at least one device.*Leave it out"),
        (["CPU:0", "/cpu:0"], ValueError, r"each device once.*CPU:0.*stands 2 times"),
        (["CPU:0", "CPU:7"], ValueError, r"must exist, but received 'CPU:7'.*'CPU:0'.*'CPU:4'"),
        (["GPU:0"], ValueError, r"must exist, but received 'GPU:0'"),
        (["banana"], ValueError, r"must hold device names, but received 'banana'"),
        ([3], ValueError, r"must hold device names, but received 3"),
        ([""], ValueError, r"must hold device names, but received ''"),
        ([None], ValueError, r"must hold device names, but received None"),
        (
            ["/job:worker/task:1/device:CPU:0"],
            ValueError,
            r"must belong to this process.*received '/job:worker/task:1/device:CPU:0'.*\"CPU:0\"",
        ),
        (["/task:1/device:CPU:0"], ValueError, r"must belong to this process"),
        (["/replica:1/device:CPU:0"], ValueError, r"must belong to this process"),
    ],
)
def test_a_wrong_list_is_refused_with_what_was_received_and_a_remedy(given, error, words):
    with pytest.raises(error, match=words):
        replica_devices.resolve(given)


def _with_devices(monkeypatch, *kinds):
    listed = [tf.config.LogicalDevice(f"/device:{kind}", kind.split(":")[0]) for kind in kinds]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *args: listed)


def test_all_gpus_are_taken_where_there_are_any(monkeypatch):
    _with_devices(monkeypatch, "CPU:0", "XLA_CPU:0", "GPU:0", "GPU:1")
    assert [name[-5:] for name in replica_devices.resolve(None)] == ["GPU:0", "GPU:1"]


def test_devices_of_two_kinds_are_refused(monkeypatch):
    _with_devices(monkeypatch, "CPU:0", "GPU:0")
    with pytest.raises(ValueError, match=r"must be of one kind.*CPU and GPU"):
        replica_devices.resolve(["CPU:0", "GPU:0"])


MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_GPUS": "4,5,6,7",
}


@pytest.fixture
def gpus(monkeypatch):
    """Four GPUs that are not there; a function that returns the numbers of those left visible."""
    present = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(4)]
    visible = [*present]

    def set_visible(chosen, kind):
        visible[:] = chosen

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: present)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [*visible])
    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def left(**environ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert replica_devices.count(None) == replica_devices.count(None) == len(visible)
        return [int(gpu.name[-1]) for gpu in visible]

    left.hide = lambda: visible.pop(0)
    return left


@pytest.mark.parametrize(
    ("environ", "own"),
    [
        ({}, [0, 1, 2, 3]),
        (MPI, [2, 3]),
        (SRUN | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [2, 3]),  # the step's, not the task's
        (SRUN | {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_STEP_GPUS": "0,1"}, [0, 1, 2, 3]),
        (MPI | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, [0, 1, 2, 3]),  # chosen for this rank
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, [0, 1, 2, 3]),
        (MPI | {"TFDP_RUN_STATUS": "/tmp/x"}, [0, 1, 2, 3]),
    ],
)
def test_ranks_of_one_host_take_gpus_of_their_own_where_nobody_chose(gpus, environ, own):
    assert gpus(**environ) == own


def test_gpus_that_the_program_has_chosen_are_kept(gpus):
    gpus.hide()
    assert gpus(**MPI) == [1, 2, 3]


def test_own_gpus_must_be_known_before_tensorflow_is_used(gpus, monkeypatch):
    def refuse(chosen, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    with pytest.raises(
        ValueError, match=r"each rank of a host must be known before .* first thing after"
    ):
        gpus(**MPI)


def test_the_parts_of_a_gpu_are_counted_as_they_are_taken(gpus, monkeypatch):
    monkeypatch.setattr(
        tf.config, "get_logical_device_configuration", lambda gpu: [None] * int(gpu.name[-1])
    )
    assert replica_devices.count(None) == 1 + 1 + 2 + 3  # the first was never split


class _Ranks:
    """A process that meets others, which have said what GPUs they use."""

    world_size, said_by = 3, "Rank 2: "

    def __init__(self, *others):
        self.others = others

    def all_gather(self, subject, own):
        return [types.SimpleNamespace(value=value) for value in (*self.others, own)]


GPU_2 = "/job:worker/replica:0/task:2/device:GPU:2"


def test_ranks_with_gpus_of_their_own_pass(gpus, monkeypatch):
    asked = []
    monkeypatch.setattr(
        replica_devices.gpus, "identities", lambda numbers: asked.extend(numbers) or ["c"]
    )
    replica_devices.check_gpus_apart([GPU_2], _Ranks(["a", "b"], []))
    assert asked == [2]
    replica_devices.check_gpus_apart(
        ["/job:worker/replica:0/task:2/device:CPU:0"], _Ranks(["a"], ["b"])
    )
    replica_devices.check_gpus_apart([GPU_2], OneProcess(1))


def test_ranks_that_share_a_gpu_are_named(gpus, monkeypatch):
    monkeypatch.setattr(replica_devices.gpus, "identities", lambda numbers: ["GPU-5d"])
    words = r"^Rank 2: .* rank 1 and rank 2 both use GPU-5d\. .*CUDA_VISIBLE_DEVICES for each rank"
    with pytest.raises(ClusterError, match=words):
        replica_devices.check_gpus_apart([GPU_2], _Ranks(["GPU-5e"], ["GPU-5d"]))
