"""Runs tests in every process of a cluster at once."""

import os
import re
import subprocess
import sys

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
PYTEST += ["-W", "ignore", "--maxfail=1"]
TIMEOUT_SECONDS = 600


def tfdp_run(processes, devices=1):
    """What starts a cluster of so many ranks, each of so many replicas."""
    command = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", str(processes)]
    command += ["--devices-per-process", str(devices)]
    return [*command, "--timeout", str(TIMEOUT_SECONDS - 20), "--"]


def every_rank_passes(files, options, processes, devices=1, *, launch=None, **environ):
    """Asserts that each rank passes the tests; one of them that fails ends the run.

    Args:
      files: Test modules.
      options: Those of pytest that choose among the tests.
      processes: Number of ranks.
      devices: Replicas of each rank.
      launch: What starts the ranks; `tfdp run` by default.
      **environ: Environment variables.
    """
    ended = subprocess.run(
        [*(launch or tfdp_run(processes, devices)), *PYTEST, *options, *map(str, files)],
        env={**os.environ, "TFDP_TESTS_CLUSTER_REPLICAS": str(processes * devices), **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{output[-6000:]}"
    # Some launchers put the lines of several ranks into one.
    assert len(re.findall(r"\d+ passed", output)) == processes, output[-6000:]
    assert not re.search(r"\d+ failed", output), output[-6000:]
