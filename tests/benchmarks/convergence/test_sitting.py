"""A sitting: what is started, kept and shown."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from sweep_records import outcome

from benchmarks.convergence import ledger, sitting
from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.sweep import needed
from tfdp.tools.bench.child_process import ChildFailure
from tutorials.datasets import DEBIAN_FASHION_MNIST, DataUnavailableError


@pytest.fixture
def options(tmp_path):
    def make(**choices):
        return ConvergenceOptions(
            **{
                "task": "mlp",
                "batches": (64, 1024),
                "optimizers": ("sgd", "lamb"),
                "results": tmp_path / "runs.jsonl",
                "output": tmp_path / "x.png",
                "table": tmp_path / "x.md",
                **choices,
            }
        )

    return make


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def workers(monkeypatch):
    """Replaces the processes. Set `result_of`, a function of the run, on what is returned."""

    class Workers:
        started: list = []
        most = still_running = 0
        result_of = staticmethod(lambda run: outcome(0.5))

        def __init__(self, jobs, timeout_seconds, data):
            self.jobs, self.running = jobs, []

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        @property
        def free(self):
            return len(self.running) < self.jobs

        def start(self, run):
            Workers.started.append(run)
            self.running.append(run)
            Workers.still_running = len(self.running)
            Workers.most = max(Workers.most, len(self.running))

        def wait(self):
            run = self.running.pop()
            Workers.still_running = len(self.running)
            return run, Workers.result_of(run)

    Workers.started = []
    monkeypatch.setattr(sitting, "Workers", Workers)
    monkeypatch.setattr(sitting.splits, "load", lambda task, examples, data: None)
    return Workers


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_a_sweep_runs_to_its_end_and_is_then_only_shown(options, console, workers, jobs):
    assert sitting.run(options(jobs=jobs), console) == 0
    assert workers.most == jobs
    assert len(workers.started) == len(set(workers.started))
    assert needed(options(), ledger.read(options().results)) == []
    assert "50.00 ± 0.00 (+0.00); rate" in options().table.read_text()
    assert options().output.exists()
    before = len(workers.started)
    assert sitting.run(options(), console) == 0
    assert len(workers.started) == before


def test_no_minutes_start_nothing_and_say_what_is_left(options, console, workers):
    assert sitting.run(options(minutes=0), console) == 0
    assert workers.started == []
    assert "next sgd 64, rate 0.02, seed 0" in console.file.getvalue()


def test_when_the_time_is_up_what_runs_is_kept_and_the_rest_is_left(
    options, console, workers, monkeypatch
):
    """Every run takes a minute."""
    monkeypatch.setattr(
        sitting.time, "monotonic", lambda: 60 * (len(workers.started) - workers.still_running)
    )
    assert sitting.run(options(minutes=2, jobs=2), console) == 0
    assert set(ledger.read(options().results)) == set(workers.started)
    assert len(workers.started) == 3
    assert f"The same command goes on from {options().results}" in console.file.getvalue()


def test_data_that_are_not_there_end_it_before_any_run(options, console, workers, monkeypatch):
    def fail(*_):
        raise DataUnavailableError("no images")

    monkeypatch.setattr(sitting.splits, "load", fail)
    with pytest.raises(DataUnavailableError):
        sitting.run(options(), console)
    assert workers.started == []


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_others_and_sets_the_exit_code(options, console, workers):
    failure = ChildFailure("python -m x", "exited with status 1", "[the cause]")
    workers.result_of = staticmethod(
        lambda run: failure if run.optimizer == "lamb" else outcome(0.5)
    )
    assert sitting.run(options(), console) == 1
    assert "[the cause]" in console.file.getvalue()
    assert "3 runs failed" in console.file.getvalue()
    kept = ledger.read(options().results)
    assert {run.optimizer for run in kept} == {"sgd"}
    assert {run.batch for run in kept} == {64, 1024}
    workers.result_of = staticmethod(lambda run: outcome(0.5))
    assert sitting.run(options(), console) == 0


def test_a_signal_ends_the_sitting_and_leaves_the_file_whole(options, console, workers):
    def stop_at_the_third(run):
        if len(workers.started) == 3:
            signal.raise_signal(signal.SIGTERM)
        return outcome(0.5)

    workers.result_of = staticmethod(stop_at_the_third)
    assert sitting.run(options(), console) == 143
    assert len(ledger.read(options().results)) == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_two_commands_at_once_are_refused(options, console, workers):
    with ledger.locked(options().results):
        with pytest.raises(ledger.LedgerError, match="another is adding"):
            sitting.run(options(), console)
        assert sitting.run(options(minutes=0), console) == 0


def children_of(process):
    tasks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(child) for child in tasks.read_text().split()]


def ends(pid, timeout_seconds=60):
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.exhaustive("test_a_sweep_runs_to_its_end_and_is_then_only_shown")
@pytest.mark.multiprocess
@pytest.mark.skipif(not DEBIAN_FASHION_MNIST.is_dir(), reason="needs dataset-fashion-mnist")
def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path):
    """SIGKILL while the second run trains: its process ends too, and the first is not repeated."""
    results = tmp_path / "runs.jsonl"
    words = "convergence --task mlp --batches 64 --optimizers sgd --seeds 1 --epochs 1"
    files = ["--results", str(results), "--output", str(tmp_path / "x.png")]
    command = [sys.executable, "-m", "benchmarks", *words.split(), "--examples", "128", *files]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not results.exists() or not (first := results.read_bytes()):
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    while not (children := children_of(killed)):
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert all(ends(child) for child in children)
    results.write_bytes(first + first[:50])  # and while it wrote

    # One more run is started, and the time is up.
    done = subprocess.run(
        [*command, "--minutes", "0.001"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert results.read_bytes().startswith(first)
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert [run["learning_rate"] for run in runs] == [0.02, 0.04]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "next sgd 64, rate 0.01, seed 0" in done.stdout
