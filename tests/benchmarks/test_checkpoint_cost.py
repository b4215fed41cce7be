"""`benchmarks checkpoint`: one checkpoint among the steps that are timed."""

import subprocess
import sys

import pytest


@pytest.mark.multiprocess
def test_one_checkpoint_is_timed_among_the_steps_of_a_fit():
    words = ["checkpoint", "--model", "small", "--rounds", "1", "--steps", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "one checkpoint in 4 of them" in " ".join(done.stdout.split())
    (row,) = [line for line in done.stdout.splitlines() if "small" in line]
    cells = [cell.strip() for cell in row.strip("\u2502\n ").split("\u2502")]
    assert cells[1] == "0 MB"
    assert all(float(cell) > 0 for cell in cells[2:])
