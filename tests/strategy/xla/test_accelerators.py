"""What XLAStrategy finds on a host with GPUs, by stand-ins for `nvidia-smi`, JAX and TensorFlow."""

import types

import pytest
import tensorflow as tf

jax = pytest.importorskip("jax")

from tfdp.base import machine  # noqa: E402
from tfdp.base.warn_once import warn_once  # noqa: E402
from tfdp.strategy.xla import accelerators  # noqa: E402

CPU = [types.SimpleNamespace(platform="cpu")]
GPU = [types.SimpleNamespace(platform="gpu")]
LOCAL = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Returns a function that gives a host with GPUs and JAX's plugin, and its environment."""
    monkeypatch.setattr(accelerators, "platforms", lambda: "")

    def make(count, plugin="jax-cuda13-plugin", free=80000, **environ):
        listed = "".join(f"GPU {i}: NVIDIA H100 (UUID: GPU-{i})\n" for i in range(count))
        memory = "".join(f"GPU-{i}, {free}, 80000\n" for i in range(count))
        (tmp_path / "listed").write_text(listed)
        (tmp_path / "memory").write_text(memory)
        path = tmp_path / "nvidia-smi"
        path.write_text(
            f'#!/bin/sh\n[ "$*" = -L ] && exec /bin/cat {tmp_path}/listed\n'
            f"exec /bin/cat {tmp_path}/memory\n"
        )
        path.chmod(0o755)
        version = {plugin: "0.10.2"}
        monkeypatch.setattr(machine, "_installed", lambda name: version.get(name))
        return {"PATH": str(tmp_path), **environ}

    return make


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [0, 1, 2, 3]),
        (LOCAL, [2, 3]),
        (LOCAL | {"CUDA_VISIBLE_DEVICES": "3"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"JAX_LOCAL_DEVICE_IDS": "1,2"}, [1, 2]),
    ],
)
def test_a_process_uses_its_share_of_the_hosts_gpus(host, environ, numbers):
    assert accelerators.gpus_of_host(host(4, **environ)) == numbers


def test_no_gpu_is_used_without_a_plugin_or_where_jax_was_told_another_platform(host, monkeypatch):
    assert accelerators.gpus_of_host(host(4, plugin=None)) == []
    monkeypatch.setattr(accelerators, "platforms", lambda: "cpu")
    assert accelerators.gpus_of_host(host(4)) == []


@pytest.mark.parametrize(
    ("plugin", "named"),
    [
        (None, r"shows 2 and JAX has no plugin for it.*pip install 'tfdp\[xla-cuda13\]'"),
        ("jax-cuda12-plugin", r"jax-cuda12-plugin 0.10.2, which found none.*jax.devices\('cuda'\)"),
    ],
)
def test_a_gpu_that_jax_cannot_use_is_an_error_that_says_what_to_install(host, plugin, named):
    with pytest.raises(ImportError, match=named) as raised:
        accelerators.check_there(CPU, host(2, plugin=plugin))
    assert "set JAX_PLATFORMS=cpu" in str(raised.value)


def test_a_chosen_cpu_a_used_gpu_and_a_host_without_one_are_no_errors(host, monkeypatch, caplog):
    accelerators.check_there(GPU, host(2))
    accelerators.check_there(CPU, host(0, plugin=None))
    assert "JAX has found no GPU and no TPU" in caplog.text
    caplog.clear()
    monkeypatch.setattr(accelerators, "platforms", lambda: "cpu")
    accelerators.check_there(CPU, host(2, plugin=None))
    assert not [each for each in caplog.records if each.name == "tfdp"]


@pytest.mark.parametrize(
    ("free", "environ", "warns"),
    [
        (80000, {}, False),
        (61000, {}, False),
        (20000, {}, True),
        (20000, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, False),
        (20000, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}, False),
        (20000, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, False),
    ],
)
def test_memory_that_others_have_is_named_before_jax_takes_its_part(
    host, caplog, free, environ, warns
):
    accelerators.check_memory([1], host(2, free=free, **environ))
    said = "JAX takes 60000 of the 80000 MiB of GPU-1 as it starts, but 20000 are free"
    assert (said in caplog.text) is warns
    assert ("XLA_PYTHON_CLIENT_MEM_FRACTION=0.23" in caplog.text) is warns


@pytest.fixture
def of_tensorflow(monkeypatch):
    """TensorFlow's build for GPUs with two of them; returns what is hidden, and how to start it."""
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    present = [types.SimpleNamespace(name=f"GPU:{i}") for i in range(2)]
    state = types.SimpleNamespace(visible=present, has_started=False, grows=False)

    def set_visible(chosen, kind):
        assert kind == "GPU"
        if state.has_started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        state.visible = chosen

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: state.visible)
    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible)
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda gpu: state.grows)
    warn_once.cache_clear()
    return state


def test_gpus_of_tensorflow_are_left_to_jax_and_that_is_said_once(of_tensorflow, caplog):
    accelerators.leave_to_jax()
    assert of_tensorflow.visible == []
    of_tensorflow.visible = ["another"]
    accelerators.leave_to_jax()
    assert caplog.text.count("hidden from TensorFlow") == 1


def test_a_tensorflow_that_has_the_gpus_already_is_an_error_unless_it_takes_little(of_tensorflow):
    of_tensorflow.has_started = True
    with pytest.raises(ValueError, match=r"started with 2.*first thing.*set_visible_devices\(\[\]"):
        accelerators.leave_to_jax()
    of_tensorflow.grows = True
    accelerators.leave_to_jax()


@pytest.fixture
def cpu_of_jax(monkeypatch):
    """Returns a function that asks for devices of the CPU, and returns what JAX is told."""
    monkeypatch.setenv("XLA_FLAGS", "")
    told = []
    monkeypatch.setattr(
        accelerators.jax,
        "config",
        types.SimpleNamespace(
            jax_num_cpu_devices=-1, update=lambda name, value: told.append((name, value))
        ),
    )

    def ask(count, has_started=False, told_before=-1):
        monkeypatch.setenv("TFDP_DEVICES_PER_PROCESS", count)
        monkeypatch.setattr(accelerators, "backend_has_started", lambda: has_started)
        accelerators.jax.config.jax_num_cpu_devices = told_before
        accelerators.split_cpu()
        return told

    return ask


def test_devices_per_process_are_jaxs_devices_unless_it_was_told_others(cpu_of_jax):
    assert cpu_of_jax("3", told_before=8) == []
    assert cpu_of_jax("3") == [("jax_num_cpu_devices", 3)]


def test_devices_per_process_must_be_known_before_jax_starts(cpu_of_jax):
    cpu_of_jax("8", has_started=True)
    with pytest.raises(ValueError, match=r"PROCESS=3 must be known before JAX is used.*with 8"):
        cpu_of_jax("3", has_started=True)
