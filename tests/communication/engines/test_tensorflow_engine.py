"""What moves tensors between devices; the GPUs are stand-ins."""

import pytest
import tensorflow as tf

from tfdp.communication.engines import communication_hint, gpus_of_logical_devices


@pytest.fixture
def gpus(monkeypatch):
    """Returns a function that makes GPUs, each of so many parts; None: it was never split."""

    def make(*parts):
        physical = [
            tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU")
            for index in range(len(parts))
        ]
        split = {
            gpu.name: count and [object()] * count
            for gpu, count in zip(physical, parts, strict=True)
        }
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: physical)
        monkeypatch.setattr(
            tf.config, "get_logical_device_configuration", lambda gpu: split[gpu.name]
        )

    return make


@pytest.mark.parametrize(
    ("parts", "indices", "hint"),
    [
        ([None, None], [0, 1], "nccl"),
        ([None], [0], "nccl"),
        ([2], [0, 1], "auto"),  # one GPU, which NCCL takes for one rank alone
        ([2, 2], [0, 2], "nccl"),  # a part of each
        ([2, None], [1, 2], "nccl"),
        ([None, 3], [0, 1, 3], "auto"),
    ],
)
def test_nccl_moves_tensors_where_each_replica_has_a_gpu_of_its_own(gpus, parts, indices, hint):
    gpus(*parts)
    names = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in indices]
    assert communication_hint(names) == hint


def test_logical_gpus_are_numbered_gpu_by_gpu(gpus):
    gpus(2, None, 1)
    assert [name[-1] for name in gpus_of_logical_devices()] == ["0", "0", "1", "2"]
