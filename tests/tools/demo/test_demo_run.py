"""`tfdp demo` from end to end, in its own process, and its verdict."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from tfdp.tools.demo.demo_options import DemoOptions
from tfdp.tools.demo.demo_run import RELATIVE_BOUND, _verdict


@pytest.mark.parametrize(
    ("apart", "code"), [(1e-7, 0), (RELATIVE_BOUND, 0), (1e-2, 1), (np.inf, 1), (np.nan, 1)]
)
def test_the_exit_code_says_whether_the_weights_agree(apart, code):
    text = io.StringIO()
    assert _verdict(apart, 8.0, DemoOptions(), Console(file=text, width=200)) == code
    assert f"{8 * apart:.2e}, {apart:.2e} of the largest weight" in text.getvalue()
    assert ("This is a bug in tfdp" in text.getvalue()) == (code == 1)


@pytest.mark.exhaustive("tools/demo/test_demo_processes.py::test_processes_train_like_one_device")
def test_the_demo_s_replicas_train_like_one_device(tmp_path):
    curves = tmp_path / "curves.png"
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    words = ["demo", "--epochs", "2", "--replicas", "3", "--output", str(curves)]
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.tools.cli", *words],
        capture_output=True,
        text=True,
        env={**environment, "COLUMNS": "200"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Curves: {curves}" in done.stdout
    assert "3 replicas" in done.stdout
    assert curves.stat().st_size > 10_000
