"""Under `tfdp run` all ranks get the same report."""

import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.multiprocess]

SCRIPT = pathlib.Path(__file__).parent / "scripts/in_cluster.py"


@pytest.mark.exhaustive(
    "verification/test_verify.py::test_a_right_program_passes_on_uneven_batches"
)
@pytest.mark.timeout(320)
def test_all_ranks_get_the_same_report():
    command = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2", "--timeout", "300"]
    done = subprocess.run([*command, "--", sys.executable, SCRIPT], capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert "rank 0: 5 reports" in output and "rank 1: 5 reports" in output, output[-6000:]
