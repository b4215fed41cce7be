"""Processes that train: how they end, and what is said of those that fail."""

import json
import pathlib
import time

import pytest
from sweep_records import outcome

from benchmarks.convergence import workers
from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.runs import to_json
from benchmarks.convergence.workers import Workers
from tfdp.tools.bench.child_process import ChildFailure

RUN = ConvergenceOptions("mlp").run("sgd", 64, 0.1, 0)


@pytest.fixture
def result_of(tmp_path, monkeypatch):
    """Returns a function that lets a program be the worker."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(workers, "_MODULE", "some_worker")

    def run(program, timeout_seconds=60.0):
        (tmp_path / "some_worker.py").write_text("import json, os, sys, time\n" + program)
        with Workers(1, timeout_seconds, data=None) as started:
            started.start(RUN)
            assert (started.running, started.free) == ([RUN], False)
            run, result = started.wait()
            assert (run, started.running, started.free) == (RUN, [], True)
        return result

    return run


def test_the_last_line_is_the_outcome(result_of):
    line = json.dumps(to_json(RUN, outcome(0.5)))
    assert result_of(f"print('noise')\nprint({line!r})") == outcome(0.5)


def test_the_run_is_what_the_worker_reads(result_of):
    """A worker that answers with another run's is not believed."""
    line = json.dumps(to_json(ConvergenceOptions("mlp").run("sgd", 64, 0.2, 0), outcome(0.5)))
    assert "of another run" in result_of(f"print({line!r})").reason
    asked = result_of("print(json.loads(sys.stdin.readline())['run']['learning_rate'])")
    assert "['0.1']" in asked.reason


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("sys.exit('x\\n' * 99 + 'the cause')", "exited with status 1"),
        ("os.kill(os.getpid(), 9)", "exited with status -9"),
        ("", r"printed \[\]"),
        ("print('no json')", "printed"),
    ],
)
def test_one_that_fails_is_reported(result_of, program, reason):
    failure = result_of(program)
    assert isinstance(failure, ChildFailure)
    assert reason.replace("\\", "") in failure.reason
    assert "(sgd 64, rate 0.1, seed 0)" in failure.command
    assert ("cause" in program) == failure.stderr_tail.endswith("the cause")


def test_one_that_hangs_is_killed_at_its_deadline(result_of):
    assert result_of("time.sleep(600)", timeout_seconds=0.5).reason == "was killed after 0.5 s"


def test_what_still_runs_at_the_end_is_killed_with_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(workers, "_MODULE", "some_worker")
    pids = tmp_path / "pids"
    child = f"child = subprocess.Popen(['sleep', '600'])\nopen({str(pids)!r}, 'a').write"
    child += "(f'{child.pid}\\n')"
    (tmp_path / "some_worker.py").write_text(f"import subprocess\n{child}\nchild.wait()")
    with pytest.raises(KeyboardInterrupt), Workers(2, 60.0, data=None) as started:
        started.start(RUN)
        started.start(RUN)
        processes = [each.process for each in started._started]
        while not pids.exists() or pids.read_text().count("\n") < 2:
            time.sleep(0.05)
        raise KeyboardInterrupt
    assert [process.poll() for process in processes] == [-9, -9]
    while any(map(_runs, pids.read_text().split())):
        time.sleep(0.05)


def _runs(pid):
    try:
        state = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # killed, whatever has taken its place as its parent
