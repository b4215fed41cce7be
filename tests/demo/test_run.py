"""`tfdp demo` from end to end, in its own process, and its verdict."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from tfdp.demo.compare import WeightDifference
from tfdp.demo.demo_command import DemoOptions
from tfdp.demo.run import _verdict


@pytest.mark.parametrize(("absolute", "code"), [(1e-7, 0), (1e-2, 1), (float("nan"), 1)])
def test_the_exit_code_says_whether_the_weights_agree(absolute, code):
    text = io.StringIO()
    difference = WeightDifference(absolute, largest_weight=1.0)
    assert _verdict(difference, DemoOptions(), Console(file=text, width=200)) == code
    assert ("This is a bug in tfdp" in text.getvalue()) == (code == 1)


@pytest.mark.exhaustive("demo/test_processes.py::test_processes_train_like_one_device")
@pytest.mark.parametrize("replicas", [2, 3])
def test_the_demo_s_replicas_train_like_one_device(tmp_path, replicas):
    curves = tmp_path / "curves.png"
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    words = ["demo", "--epochs", "2", "--replicas", str(replicas), "--output", str(curves)]
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.cli", *words],
        capture_output=True,
        text=True,
        env={**environment, "COLUMNS": "200"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Curves: {curves}" in done.stdout
    assert f"{replicas} replicas" in done.stdout
    assert curves.stat().st_size > 10_000
