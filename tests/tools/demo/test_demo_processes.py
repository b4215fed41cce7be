"""The demo's second run in processes: what goes to the ranks, what comes back, what fails."""

import os
import subprocess
import sys

import pytest
import tiers


def demo(program, folder, *words):
    """Runs `tfdp demo` in a process of its own, after some lines of `program`."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nfrom tfdp.tools.cli import main\n"
         "sys.exit(main(['demo', *sys.argv[1:]]))", "--epochs", "1", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
        cwd=folder,
        timeout=300,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("replicas", tiers.first_of(2, 4))
def test_processes_train_like_one_device(replicas, tmp_path):
    done = demo("", tmp_path, "--processes", "2", "--replicas", str(replicas))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "tfdp-demo.png").stat().st_size > 10_000
    assert "Largest weight difference" in done.stdout
    assert "64 examples; 2 processes\n" in done.stdout
    assert ("4 replicas, 2 processes" in done.stdout) == (replicas == 4)


@pytest.mark.multiprocess
def test_a_rank_that_fails_is_named_with_its_error_and_the_demo_fails(tmp_path):
    (tmp_path / "rank.py").write_text(
        "import json, os, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:\n"
        "    raise ValueError('the disk is full')\n"
        "time.sleep(300)\n"
    )
    done = demo(
        "import tfdp.tools.demo.demo_processes as p; p.rank_command = lambda *_: ('rank.py',)",
        tmp_path,
        *("--processes", "2"),
    )
    assert done.returncode == 1
    assert "rank 1 of 2 failed first, with exit code 1." in done.stderr
    assert "ValueError: the disk is full" in done.stderr
    assert "All 2 processes must end without an error" in done.stdout
    assert "Largest weight difference" not in done.stdout
