"""Scatters by indices of 64 bits, which gradients of tables are, on devices with uneven shares."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("jax")
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "scatters.py"


@pytest.mark.slow
def test_rows_are_added_by_indices_of_64_bits_and_what_is_outside_is_left_out():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) == 0
