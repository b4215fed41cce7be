"""The devices of measured replicas: whole GPUs, or parts of one, or of the CPU."""

import pytest
import tensorflow as tf

from tfdp.tools.bench import bench_devices


@pytest.fixture
def machine(monkeypatch):
    """A machine with GPUs, whose devices nothing uses yet."""
    found = {"GPU": ["gpu 0", "gpu 1"], "CPU": ["cpu"], "split": {}, "tf32": True}
    experimental = tf.config.experimental
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: found[kind])
    monkeypatch.setattr(
        tf.config,
        "set_logical_device_configuration",
        lambda d, parts: found["split"].update({d: parts}),
    )
    monkeypatch.setattr(
        experimental, "enable_tensor_float_32_execution", lambda on: found.update(tf32=on)
    )
    return found


def test_replicas_have_whole_gpus_where_there_are_as_many(machine):
    assert bench_devices.of_replicas(2, "GPU") == ["GPU:0", "GPU:1"]
    assert not machine["split"] and not machine["tf32"]


def test_more_replicas_than_gpus_share_the_first(machine):
    assert bench_devices.of_replicas(3, "GPU") == ["GPU:0", "GPU:1", "GPU:2"]
    (parts,) = machine["split"].values()
    assert list(machine["split"]) == ["gpu 0"] and not machine["tf32"]
    assert [part.memory_limit for part in parts] == [2048] * 3


def test_replicas_on_the_cpu_are_parts_of_it_and_gpus_stay_as_they_are(machine):
    assert bench_devices.of_replicas(2, "CPU") == ["CPU:0", "CPU:1"]
    assert list(machine["split"]) == ["cpu"] and machine["tf32"]
    assert [part.memory_limit for part in machine["split"]["cpu"]] == [None, None]


def test_without_a_gpu_the_worker_says_what_to_ask(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(RuntimeError, match=r"must see a GPU to split it into 2.*`tfdp doctor`"):
        bench_devices.split(2, "GPU")
