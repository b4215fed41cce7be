"""`benchmarks memory`: each way to shard is measured in processes of its own."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.exhaustive(
    "benchmarks/test_checkpoint_cost.py::test_one_checkpoint_is_timed_among_the_steps_of_a_fit"
)
def test_each_way_to_shard_has_a_row():
    words = ["memory", "--model", "small", "--rounds", "1", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("\u2502")]
    assert [row.split()[1] for row in rows] == ["none", "optimizer", "gradients"]
