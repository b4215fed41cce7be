"""The strategy across processes."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (3, 1), (2, 2)])
def test_processes_are_one_strategy(processes, devices):
    """Every rank must pass every test of `in_cluster.py`."""
    cases = pathlib.Path(__file__).parent / "in_cluster.py"
    command = [sys.executable, "-m", "tfdp.cli", "run", "-n", str(processes)]
    command += ["--devices-per-process", str(devices), "--timeout", "280", "--"]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-W", "ignore", "--maxfail=1", str(cases)],
        env={**os.environ, "TFDP_TESTS_CLUSTER_REPLICAS": str(processes * devices)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    assert ended.stdout.count(" passed") == processes
