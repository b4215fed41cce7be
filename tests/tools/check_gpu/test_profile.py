"""What is counted in a profile of GPUs, of which one is made up here."""

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdp.tools.check_gpu import profile
from tfdp.tools.check_gpu.profile import counted


def add(space, plane_name, lines):
    plane = space.planes.add(name=plane_name)
    for line_name, events in lines.items():
        line = plane.lines.add(name=line_name)
        for event in events:
            number = len(plane.event_metadata) + 1
            plane.event_metadata[number].name = event
            line.events.add(metadata_id=number)


def test_copies_and_kernels_on_the_streams_of_gpus_are_counted():
    space = xplane_pb2.XSpace()
    compute = ["void gemm<float>", "MemcpyD2H", "MemcpyH2D", "MemcpyH2D", "Memset"]
    nccl = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "MemcpyP2P"]
    again = {"TensorFlow Ops": ["MatMul", "MemcpyD2H"], "Steps": ["1"]}
    add(space, "/device:GPU:0", {"Stream #13(Compute,Memcpy)": compute, **again})
    add(space, "/device:GPU:1", {"Stream #21(NCCL)": nccl, "Stream #4": ["MemcpyD2D"]})
    add(space, "/host:CPU", {"Stream": ["MemcpyD2H"], "tf_Compute": ["MatMul"]})
    assert counted(space.SerializeToString()) == {
        "to the host": 1,
        "to a GPU": 2,
        "between GPUs": 1,
        "within a GPU": 1,
        "memsets": 1,
        "kernels": 1,
        "NCCL's kernels": 1,
    }


@pytest.mark.parametrize(("device", "state"), [("GPU", "failed"), ("CPU", "works")])
def test_a_profile_without_a_gpu_says_nothing_of_gpus(device, state, monkeypatch):
    monkeypatch.setattr(profile, "of_replicas", lambda replicas, kind: ["CPU:0", "CPU:1"])
    monkeypatch.setattr(profile, "_of_steps", lambda strategy: {})
    found = profile.compared(device, 2)
    assert found.state == state
    assert ("CUPTI" in found.said) == (device == "GPU")


def test_each_side_is_said(monkeypatch):
    counts = iter([{"to the host": 1.0, "kernels": 5.0}, {"to a GPU": 2.5}, {}])
    monkeypatch.setattr(profile, "of_replicas", lambda replicas, kind: ["CPU:0", "CPU:1"])
    monkeypatch.setattr(profile, "_of_steps", lambda strategy: next(counts))
    found = profile.compared("GPU", 2)
    assert found.state == "works"
    assert "one device: copies 1 to the host, 0 to a GPU, 5 kernels; tfdp: copies 0" in found.said
    assert list(found.details["of a step"]) == ["one device", "tfdp", "MirroredStrategy"]
