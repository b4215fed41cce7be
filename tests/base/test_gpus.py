"""Which GPUs there are, by a stand-in for `nvidia-smi`, and who gets which."""

import itertools

import pytest

from tfdp.base import gpus

PLAIN = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i}a-b)\n" for i in range(4))
DIVIDED = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-c6)\n"
    "  MIG 3g.20gb     Device  1: (UUID: MIG-fa)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5e)\n"
)


@pytest.fixture
def nvidia_smi(tmp_path):
    """Returns a function that makes a stand-in and returns an environment that has it."""

    def make(listed, code=0, **environ):
        path = tmp_path / "nvidia-smi"
        (tmp_path / "listed").write_text(listed)
        path.write_text(f'#!/bin/sh\n[ "$*" = -L ] && /bin/cat {tmp_path}/listed\nexit {code}\n')
        path.chmod(0o755)
        return {"PATH": str(tmp_path), **environ}

    return make


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (PLAIN, ["0", "1", "2", "3"]),
        (DIVIDED, ["MIG-c6", "MIG-fa", "1"]),
        ("", []),
        ("No devices found.\n", []),
    ],
)
def test_gpus_are_those_that_the_driver_lists(nvidia_smi, listed, names):
    assert gpus.visible(nvidia_smi(listed)) == names


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("3,1", ["3", "1"]),
        ("GPU-1a, 2", ["GPU-1a", "2"]),
        ("1,4,2", ["1"]),  # CUDA stops at what is no GPU
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_of_the_gpus_that_the_user_has_set_those_count_that_cuda_takes(nvidia_smi, chosen, names):
    assert gpus.visible(nvidia_smi(PLAIN, CUDA_VISIBLE_DEVICES=chosen)) == names


@pytest.mark.parametrize(
    ("listed", "chosen", "numbers", "uuids"),
    [
        (PLAIN, None, [0, 3], ["GPU-0a-b", "GPU-3a-b"]),
        (PLAIN, "3,1", [0], ["GPU-3a-b"]),
        (PLAIN, "GPU-1a,2", [0, 1], ["GPU-1a-b", "GPU-2a-b"]),
        (DIVIDED, None, [1, 2], ["MIG-fa", "GPU-5e"]),
        ("GPU 0: one without a UUID\n", None, [0], []),
        ("", None, [0], []),
    ],
)
def test_a_gpu_has_an_identity_whatever_its_number_is(nvidia_smi, listed, chosen, numbers, uuids):
    environ = nvidia_smi(listed)
    if chosen is not None:
        environ["CUDA_VISIBLE_DEVICES"] = chosen
    assert gpus.identities(numbers, environ) == uuids


def test_a_setting_on_a_host_without_gpus_means_nothing(nvidia_smi, tmp_path):
    assert gpus.visible({"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1"}) == []
    failing = nvidia_smi("NVIDIA-SMI has failed\n", code=9, CUDA_VISIBLE_DEVICES="0,1")
    assert gpus.visible(failing) == []


@pytest.mark.parametrize(("found", "processes", "each"), [(8, 8, 1), (8, 3, 2), (8, 2, 3)])
def test_no_two_processes_get_one_gpu(found, processes, each):
    names = [str(i) for i in range(found)]
    shares = [gpus.share(names, place, processes, each) for place in range(processes)]
    assert {len(share) for share in shares} == {each}
    assert [*itertools.chain(*shares)] == names[: processes * each]


def test_memory_is_told_by_uuid(nvidia_smi, tmp_path):
    environ = nvidia_smi("")
    listed = "GPU-0a, 79000, 81559\nGPU-1a, [N/A], [N/A]\n"
    asked = "--query-gpu=uuid,memory.free,memory.total --format=csv,noheader,nounits"
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && echo "{listed}"\n')
    assert gpus.memory(environ) == {"GPU-0a": (79000.0, 81559.0)}
    assert gpus.memory({"PATH": ""}) == {}
