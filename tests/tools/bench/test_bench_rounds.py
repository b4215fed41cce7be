"""What `tfdp bench` starts in each round, and the names of what was measured."""

import importlib.util
import io
import json
import pathlib
import types

import pytest
from rich.console import Console

from tfdp.tools.bench import bench_rounds
from tfdp.tools.bench.bench_options import BenchOptions
from tfdp.tools.bench.bench_tables import Bound


@pytest.fixture
def started(monkeypatch):
    """Replaces the processes; returns the list of the command lines."""
    commands = []

    def start(module, arguments, timeout_seconds):
        plan = json.loads(pathlib.Path(arguments[-1]).read_text())
        commands.append((plan["engine"], arguments[: arguments.index("--") + 2]))
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
    monkeypatch.setattr(bench_rounds, "_bound", lambda options, namespaces: Bound(1e9, 2, 2))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return commands


def measured(options, tmp_path):
    """The sides of the file of results, and what was printed."""
    console = Console(file=io.StringIO(), width=80)
    path = tmp_path / "x.json"
    files = {"output": tmp_path / "x.png", "json": path}
    assert bench_rounds.run(BenchOptions(sizes=(1000,), rounds=2, **options, **files), console) == 0
    results = json.loads(path.read_text())["results"]
    assert all(result["seconds"] == [1.01] for result in results), "the slowest rank's"
    assert all(result["link_bytes"] == [8] for result in results), "the host's that sent most"
    return [result["side"] for result in results], console.file.getvalue()


def test_both_engines_and_all_others_take_turns_in_each_round(started, tmp_path):
    sides = ("ring", "stock", "gloo", "mpi4py", "graph")
    found, printed = measured({"sides": sides}, tmp_path)
    assert found == ["ring", "ring, mpi", *sides[1:]] * 2
    assert [engine for engine, _ in started] == ["tensorflow", "mpi", *sides[1:]] * 2
    of = dict(started)
    plain = ["run", "-n", "2", "--"]
    assert of["tensorflow"][:4] == of["gloo"][:4] == plain
    assert of["stock"] == [*plain, "env"], "as its users start it"
    assert (
        of["mpi"][:6]
        == of["mpi4py"][:6]
        == of["graph"][:6]
        == ["run", "-n", "2", "--engine", "mpi", "--"]
    )
    assert all(side in printed for side in ("ring, mpi", "mpi4py", "graph"))
    assert max(map(len, printed.splitlines()[:-1])) <= 80


@pytest.mark.slow
def test_what_is_not_installed_is_left_out_and_said(started, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found, printed = measured({"sides": ("ring", "gloo")}, tmp_path)
    assert found == ["ring"] * 2
    assert "The engine mpi is left out: mpi4py is not installed" in " ".join(printed.split())
    assert "gloo is left out: torch is not installed" in " ".join(printed.split())


def test_nothing_that_is_installed_is_a_failure(started, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    console = Console(file=io.StringIO())
    assert bench_rounds.run(BenchOptions(sides=("gloo",)), console) == 1
    assert started == []
