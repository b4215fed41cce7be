"""Children with deadlines: what they return, by JSON too, and how their failures read."""

import pathlib
import time

import pytest

from tfdp.tools.bench.child_process import ChildFailure, run_for_json, run_module


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Returns a function that runs a program as a module."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(program, *arguments, timeout_seconds=60.0, **options):
        (tmp_path / "some_child.py").write_text(program)
        return run_module("some_child", arguments, timeout_seconds, **options)

    return run


def test_children_get_their_words_and_enough_inter_op_threads(child):
    done = child("import os, sys; print(os.environ['TF_NUM_INTEROP_THREADS'], sys.argv[1])", "7")
    assert done.stdout == "8 7\n"


@pytest.mark.parametrize("visible", ["1,3", None])
def test_children_see_gpus_if_they_are_meant_to(visible, child, monkeypatch):
    program = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert child(program, on_gpus=True).stdout == f"{visible}\n"
    assert child(program).stdout == "-1\n"


def test_a_child_that_fails_is_reported_with_its_last_words(child):
    failure = child("import sys; print('x\\n' * 99, 'the cause', file=sys.stderr); sys.exit(3)")
    assert isinstance(failure, ChildFailure)
    assert failure.reason == "exited with status 3"
    assert failure.stderr_tail.endswith("the cause")
    assert len(failure.stderr_tail.splitlines()) <= 15
    assert "python -m some_child" in str(failure)


def test_a_child_that_hangs_is_killed_at_its_deadline(child):
    failure = child("import time; time.sleep(600)", timeout_seconds=0.5)
    assert failure.reason == "was killed after 0.5 s"


def test_what_a_child_has_started_ends_with_it_and_is_not_waited_for(child, tmp_path):
    """Ranks that hang hold the pipes of what started them."""
    program = (
        "import pathlib, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path(sys.argv[1]).write_text(str(other.pid))\n"
        "time.sleep(600)"
    )
    found = tmp_path / "pid"
    failure = child(program, str(found), timeout_seconds=5.0)
    assert failure.reason == "was killed after 5 s"
    deadline = time.monotonic() + 120
    while runs(found.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(found.read_text())


def runs(pid):
    """Whether a process has not ended; one that nobody has asked for its exit code has."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Returns a function that runs a program as a module."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(program, *arguments):
        (tmp_path / "some_worker.py").write_text(program)
        return run_for_json("some_worker", arguments, 60.0)

    return run


def test_the_last_line_is_the_result(worker):
    assert worker("import sys; print('noise'); print('[' + sys.argv[1] + ']')", "7") == [7]


@pytest.mark.parametrize("program", ["", "print('no json')"])
def test_a_worker_that_prints_no_json_is_a_failure(worker, program):
    assert "printed no JSON" in worker(program).reason


def test_a_worker_that_fails_is_a_failure(worker):
    assert worker("raise SystemExit(3)").reason == "exited with status 3"
