"""`benchmarks fit`: the order of its processes, its table and its file."""

import importlib.util
import io
import json

import pytest
from rich.console import Console

from benchmarks import fit
from benchmarks.__main__ import main
from benchmarks.fit import FitOptions
from tfdp.tools.bench.child_process import ChildFailure

STEP_SECONDS = {"tfdp": 0.1, "tfdp_mpi": 0.05, "stock": 0.2, "stock_tuned": 0.16, "ddp": 0.125}
STEP_SECONDS["one_device"] = 0.4


def result(side, **others):
    step = STEP_SECONDS[side]
    return {
        "side": side,
        "parameters": 12_605_450,
        "median_step_seconds": step,
        "first_step_seconds": 10 * step,
        "threads": 1,
        "collectives": 5.0 if side == "tfdp" else None,
        **others,
    }


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=80)


@pytest.fixture
def started(monkeypatch):
    """Replaces the processes; returns the list of sides that were started.

    All modules are installed, and the words that start each side are in `started.words`.
    """

    class Started(list):
        words = {}

    sides = Started()

    def start(module, arguments, timeout_seconds, prefix="", environment=None):
        words = [module, *arguments]
        side = "ddp" if "--side" not in words else words[words.index("--side") + 1]
        sides.append(side)
        sides.words[side] = words
        return result(side)

    monkeypatch.setattr(fit, "run_for_json", start)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return sides


def row(console, label, side):
    """What the row of a side says below a label, after its name."""
    _, _, below = console.file.getvalue().partition(f"{label}:")
    return " ".join(below.partition(f"  {side} ")[2].splitlines()[0].split())


def test_the_sides_alternate(started, console):
    assert fit.run(FitOptions(model="mlp", replicas=(2,), rounds=3), console) == 0
    assert started == ["tfdp", "stock"] * 3


def test_one_device_is_a_third_side(started, console):
    options = FitOptions(model="mlp", replicas=(2,), rounds=2, one_device=True)
    fit.run(options, console)
    assert started == ["tfdp", "stock", "one_device"] * 2


def test_the_table_compares_tfdp_with_each_side(started, console):
    fit.run(FitOptions(model="mlp", replicas=(2,), rounds=2), console)
    assert "12.61 M parameters, 50.4 MB of gradients" in console.file.getvalue()
    assert row(console, "step", "stock") == "2/2 1 200.0 ms 200.0-200.0 ms 0.50 0.50"
    assert row(console, "step", "tfdp") == "2/2 1 5 100.0 ms 100.0-100.0 ms"


def test_in_processes_both_engines_are_compared_with_all_others_in_the_same_rounds(
    started, console
):
    options = FitOptions(model="mlp", processes=2, rounds=2, one_device=True)
    assert fit.run(options, console) == 0
    sides = ["tfdp", "tfdp_mpi", "stock", "stock_tuned", "ddp", "one_device"]
    assert started == sides * 2
    table = console.file.getvalue()
    assert max(map(len, table.splitlines())) <= 80
    ddp = "2/2 1 1.25 s 1.25-1.25 s 0.80 0.80 0.40 0.40"
    assert row(console, "first step", "DDP, gloo") == ddp
    assert row(console, "step", "tfdp, mpi").endswith("2.00 2.00")
    assert "tfdp.tools.cli run -n 2 --engine mpi --" in " ".join(started.words["tfdp_mpi"])
    assert "tfdp.tools.bench.ddp_worker --model mlp --batch 16" in " ".join(started.words["ddp"])
    assert "env" in started.words["stock"] and "env" not in started.words["stock_tuned"]


def test_an_engine_can_be_chosen_and_pytorch_has_dense_networks_alone(started, console):
    fit.run(FitOptions(model="mobilenet", processes=2, rounds=1, engines=("mpi",)), console)
    assert started == ["tfdp_mpi", "stock", "stock_tuned"]


def test_what_is_not_installed_is_left_out_and_said(started, console, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fit.run(FitOptions(model="mlp", processes=2, rounds=1), console) == 0
    assert started == ["tfdp", "stock", "stock_tuned"]
    said = " ".join(console.file.getvalue().split())
    assert "The engine mpi is left out: mpi4py is not installed" in said
    assert "PyTorch's DDP is left out: torch is not installed" in said
    assert fit.run(FitOptions(processes=2, rounds=1, engines=("mpi",)), console) == 1


def test_a_failed_process_is_shown_and_sets_the_exit_code(monkeypatch, console):
    failure = ChildFailure("python -m x", "exited with status 1", "[the cause]")
    monkeypatch.setattr(
        fit,
        "run_for_json",
        lambda module, arguments, timeout, **others: (
            result("tfdp") if "tfdp" in arguments else failure
        ),
    )
    assert fit.run(FitOptions(model="mlp", replicas=(2,), rounds=1), console) == 1
    assert "[the cause]" in console.file.getvalue()
    assert "failed" in console.file.getvalue()


def test_the_file_holds_options_machine_and_every_result(started, console, tmp_path):
    path = tmp_path / "raw.json"
    fit.run(FitOptions(model="mlp", replicas=(2, 4), rounds=2, json=path), console)
    content = json.loads(path.read_text())
    assert len(content["results"]) == 8
    assert content["options"]["rounds"] == 2
    assert content["machine"]["cpus"] >= 1
    assert [p.name for p in tmp_path.iterdir()] == ["raw.json"]


def test_a_missing_tensorflow_is_answered_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit_:
        main(["fit"])
    assert exit_.value.code == 2
    assert "pip install 'tfdp[cpu]'" in capsys.readouterr().err.splitlines()[-1]


def test_all_models_are_meant_by_all(monkeypatch):
    received = []
    monkeypatch.setattr(fit, "run", lambda options: received.append(options) or 0)
    assert main(["fit", "--model", "all", "--replicas", "2"]) == 0
    assert received[0].models == fit.MODELS
    assert received[0].replicas == (2,)
