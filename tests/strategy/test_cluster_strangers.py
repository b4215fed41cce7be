"""Strangers at the ports of a running job change nothing, and other hosts do not reach them."""

import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "beside_strangers.py"


@pytest.mark.exhaustive("cluster/test_admission.py::test_who_is_not_admitted_never_connects")
@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_job_goes_on_beside_strangers_and_listens_nowhere_but_at_its_addresses():
    command = [sys.executable, "-m", "tfdp.cli", "run", "-n", "2", "--timeout", "120", "--"]
    ended = subprocess.run(
        [*command, str(SCRIPT)], capture_output=True, text=True, timeout=180, check=False
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert len(re.findall(r"^\[\d\] TRAINED$", output, re.MULTILINE)) == 2
    assert len(re.findall(r"^\[\d\] LISTENS True$", output, re.MULTILINE)) == 2
    assert "LET IN" not in output
    assert "secret" not in output.lower()
