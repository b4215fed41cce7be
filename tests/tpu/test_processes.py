"""Several processes, each with its own devices, train as one device does."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tiers

pytest.importorskip("jax")

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "trains_in_processes.py"
pytestmark = pytest.mark.multiprocess


def started(processes, devices, kind, shard, folder):
    """Starts the processes; returns these and the files that they write."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    files = [folder / f"{processes}-{number}.npz" for number in range(processes)]
    commands = [
        [sys.executable, SCRIPT, address, str(processes), str(number), kind, str(shard), file]
        for number, file in enumerate(files)
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, env=environment, **pipes) for command in commands], files


def trained(processes, devices, kind, shard, folder):
    """Returns what each process has written."""
    running, files = started(processes, devices, kind, shard, folder)
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes, "\n".join(said)
    return [dict(np.load(file)) for file in files]


@pytest.mark.parametrize(
    ("kind", "shard"),
    tiers.first_of(
        ("pipeline", "parameters"), ("arrays", None), ("pipeline", None), ("unseeded", None)
    ),
)
def test_they_train_as_one_device(kind, shard, tmp_path):
    (one,) = trained(1, 1, kind, None, tmp_path)
    first, second = trained(2, 2, kind, shard, tmp_path)
    for name, expected in one.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_unlike_batches_are_refused(tmp_path):
    running, _ = started(2, 1, "unlike", None, tmp_path)
    for process in running:
        said, _ = process.communicate(timeout=300)
        assert process.returncode != 0
        assert "must give a step the same whole batch" in said
