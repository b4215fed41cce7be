"""The example of the tf.data service: it trains, in time, and leaves no process behind."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

EXAMPLE = pathlib.Path(__file__).parent.parent.parent / "docs" / "data" / "input_service.py"


def ended(group, seconds):
    """Whether no process of a group is left; what tracks multiprocessing's resources ends last."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.exhaustive("data/test_guide.py::test_the_guide_s_program_runs")
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_the_example_trains_and_ends_its_servers():
    example = subprocess.Popen(
        [sys.executable, EXAMPLE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = example.communicate(timeout=400)
        assert example.returncode == 0, errors
        assert "500 examples, each exactly once an epoch" in output
        assert float(output.split()[-1]) > 0.9  # the last epoch's accuracy
        assert ended(example.pid, seconds=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(example.pid, signal.SIGKILL)
        example.wait(60)
