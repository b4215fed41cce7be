"""`Telemetry` in a cluster: a file for each rank, and the one that is late is named."""

import os
import pathlib
import subprocess
import sys

import pytest
from callbacks.telemetry_lines import lines

pytestmark = [pytest.mark.multiprocess]

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "late_rank.py"


def run(folder, late, **environ):
    launch = [sys.executable, "-m", "tfdp.tools.cli", "run", "-n", "2", "--timeout", "300", "--"]
    return subprocess.run(
        [*launch, sys.executable, str(SCRIPT), str(folder), str(late)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )


@pytest.mark.parametrize("late", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_the_rank_that_is_late_is_named_by_all(tmp_path, late):
    ended = run(tmp_path, late)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in (0, 1):
        (start,) = lines(tmp_path, "start", rank)
        assert (start["rank"], start["world_size"], start["replicas"]) == (rank, 2, 2)
        found = lines(tmp_path, "straggler", rank)
        assert [(line["rank"], line["epoch"]) for line in found] == [(late, 0), (late, 1)]
        assert all(line["late_seconds"] > 0.1 and line["samples"] == 6 for line in found)
    assert f"Rank {late} on " in ended.stderr and "keeps the others waiting" in ended.stderr
    steps = [lines(tmp_path, "step", rank) for rank in (0, 1)]
    assert [step["step"] for step in steps[0]] == [step["step"] for step in steps[1]]
    sampled = [[step for step in own if "gradient_norm" in step] for own in steps]
    norms = [[step["gradient_norm"] for step in own] for own in sampled]
    assert len(norms[0]) == 12 and norms[0] == norms[1]
    # The punctual rank waits as long as the other sleeps, where ranks tell each other of the batch.
    waits = [step["meeting_seconds"] for step in sampled[1 - late]]
    assert sum(waits) > 12 * 0.1
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.exhaustive("test_the_rank_that_is_late_is_named_by_all")
def test_ranks_of_which_only_one_has_telemetry_are_told_so(tmp_path):
    ended = run(tmp_path, -1, TELEMETRY_ON="1")
    assert ended.returncode != 0
    assert "the `sample_every` of Telemetry is [] on rank 0 and [2] on rank 1" in ended.stderr
