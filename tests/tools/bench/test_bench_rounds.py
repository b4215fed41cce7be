"""What `tfdp bench` starts in each round, and the names of what was measured."""

import importlib.util
import io
import json
import pathlib
import sys
import types

import measured_sums
import pytest
from rich.console import Console

from tfdp.tools.bench import bench_rounds
from tfdp.tools.bench.bench_options import BenchOptions, EngineRun
from tfdp.tools.bench.bench_tables import Bound

BOUND = Bound(1e9, 2, 2)
OTHER = EngineRun("another", ("another",), "torch", ("--timeout", "9"), ("env", "word"))


@pytest.fixture
def started(monkeypatch):
    """Replaces the processes; returns the list of the command lines."""
    commands = []

    def start(module, arguments, timeout_seconds):
        plan = json.loads(pathlib.Path(arguments[-1]).read_text())
        commands.append((plan["engine"], arguments[:-1]))
        for rank in range(2):
            results = [
                {"side": side, "size_bytes": size, "seconds": [0.01 + rank], "right": True}
                | {"link_bytes": [7 + rank]}
                for size in plan["sizes"]
                for side in plan["sides"]
            ]
            (pathlib.Path(plan["folder"]) / f"{rank}.json").write_text(json.dumps(results))
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr(bench_rounds, "run_module", start)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return commands


def measured(tmp_path, *others):
    """The sides of the file of results, and what was printed."""
    console = Console(file=io.StringIO(), width=80)
    path = tmp_path / "x.json"
    options = BenchOptions(
        sides=("ring",), sizes=(1000,), rounds=2, output=tmp_path / "x.png", json=path
    )
    assert bench_rounds.run_rounds(options, (*options.runs, *others), BOUND, console) == 0
    results = json.loads(path.read_text())["results"]
    assert all(result["seconds"] == [1.01] for result in results), "the slowest rank's"
    assert all(result["link_bytes"] == [8] for result in results), "the host's that sent most"
    return [result["side"] for result in results], console.file.getvalue()


def test_both_engines_and_all_others_take_turns_in_each_round(started, tmp_path):
    found, printed = measured(tmp_path, OTHER)
    assert found == ["ring", "ring, mpi", "another"] * 2
    assert [engine for engine, _ in started] == ["tensorflow", "mpi", "another"] * 2
    of = dict(started)
    rank = [sys.executable, "-m", "tfdp.tools.bench.bench_rank"]
    assert of["tensorflow"] == ["run", "-n", "2", "--", *rank]
    assert of["mpi"] == ["run", "-n", "2", "--engine", "mpi", "--", *rank]
    assert of["another"] == ["run", "-n", "2", "--timeout", "9", "--", "env", "word"]
    assert all(side in printed for side in ("ring, mpi", "another"))
    assert max(map(len, printed.splitlines()[:-1])) <= 80


@pytest.mark.slow
def test_what_is_not_installed_is_left_out_and_said(started, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: {"tensorflow": name}.get(name))
    found, printed = measured(tmp_path, OTHER)
    assert found == ["ring"] * 2
    assert "The engine mpi is left out: mpi4py is not installed" in " ".join(printed.split())
    assert "another is left out: torch is not installed" in " ".join(printed.split())


def test_nothing_that_is_installed_is_a_failure(started, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    console = Console(file=io.StringIO())
    assert bench_rounds.run_rounds(BenchOptions(), [OTHER], BOUND, console) == 1
    assert started == []


@pytest.mark.multiprocess
def test_a_run_measures_prints_draws_and_keeps(tmp_path):
    words = "--topology auto --engine tensorflow --sizes 1KB,1MB --rounds 1 --repeats 2"
    results, printed = measured_sums.run("tfdp bench", words, tmp_path)
    assert {(each["side"], each["size_bytes"]) for each in results} == {
        ("auto", 1000),
        ("auto", 10**6),
    }
    assert printed.count("1 MB of float32") == 1
    assert "2 ranks. One TCP stream carries" in printed
