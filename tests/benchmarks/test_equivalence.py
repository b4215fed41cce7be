"""The table of what N replicas change, as `benchmarks equivalence` prints it."""

import io
import json
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from rich.console import Console

from benchmarks import equivalence, equivalence_cases, equivalence_worker
from benchmarks.__main__ import main
from benchmarks.plan import models as plan_models
from tfdp.tools.bench import bench_models
from tfdp.tools.bench.child_process import ChildFailure
from tutorials import demo

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "equivalence_cases.py"
NUMBER = re.compile(r"\d\.\de[-+]\d\d$")


@pytest.mark.exhaustive("test_the_command_shows_what_each_cases_own_process_measured")
def test_tfdp_equals_one_device_in_every_case_and_the_stock_strategy_in_none():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert list(outcomes) == list(equivalence_cases.CASES)
    assert len(outcomes) == 14
    for outcome in outcomes.values():
        assert outcome["tfdp"]["relative"] <= 1e-5, outcomes
        assert "error" in outcome["stock"] or not outcome["stock"]["relative"] <= 1e-3, outcomes


@pytest.mark.slow
def test_the_command_shows_what_each_cases_own_process_measured(monkeypatch, capsys):
    title = "a finite generator: batches seen"
    monkeypatch.setattr(equivalence_cases, "CASES", {title: equivalence_cases.CASES[title]})
    assert main(["equivalence", "--replicas", "2"]) == 0
    cells = [line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in row] for row in cells if len(row) == 3]
    [(named, lost, kept)] = rows
    assert named == title
    assert NUMBER.match(lost) and float(lost) > 1e-3
    assert float(kept) == 0


@pytest.mark.slow
def test_the_table_needs_at_least_two_replicas():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "equivalence", "--replicas", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "`replicas` must be at least 2; received 1" in done.stderr


def test_a_benchmark_on_gpus_has_workers_that_see_them(monkeypatch):
    seen = []

    def child(module, arguments, timeout_seconds, on_gpus):
        seen.append(on_gpus)
        return ChildFailure("python", "failed", "")

    monkeypatch.setattr(equivalence, "run_for_json", child)
    equivalence.run(2, "GPU", console=Console(file=io.StringIO()))
    assert seen and all(seen)


def test_no_side_compiles_unless_it_is_told(monkeypatch):
    """Keras' "auto" compiles on one GPU, and not under a strategy."""
    kind = next(each for each in keras.Model.__mro__ if "_resolve_auto_jit_compile" in vars(each))
    monkeypatch.setattr(kind, "_resolve_auto_jit_compile", lambda model: True)
    compiled = []

    def case():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        compiled.append(model.jit_compile)
        return np.ones(1)

    monkeypatch.setitem(equivalence_cases.CASES, "a case", case)
    equivalence_worker.measure("a case", ["CPU:0", "CPU:1"], sides=["tfdp"])
    assert compiled == [False, False]
    assert not plan_models.dense().jit_compile
    assert not bench_models.build_model("small").jit_compile
    assert not demo.build_model((8, 8, 1)).jit_compile


@pytest.mark.parametrize(
    ("third", "shown"),
    [
        (
            ChildFailure("python", "was killed after 300 s", "its last words"),
            "was killed after 300 s",
        ),
        ({"tfdp": {"relative": 2e-5}, "stock": {"relative": float("nan")}}, "NaN"),
        ({"tfdp": {"relative": float("nan")}, "stock": {"error": "SomeError"}}, "SomeError"),
    ],
    ids=["no result", "too far", "not a number"],
)
def test_one_case_that_is_not_equal_fails_the_run_and_leaves_the_others(third, shown, monkeypatch):
    equal = {"tfdp": {"relative": 1e-7}, "stock": {"relative": 0.5}}
    asked = []

    def child(module, arguments, timeout_seconds, on_gpus):
        asked.append(arguments[1])
        assert not on_gpus
        return third if len(asked) == 3 else equal

    monkeypatch.setattr(equivalence, "run_for_json", child)
    console = Console(width=200, file=io.StringIO())
    assert equivalence.run(2, console=console) == 1
    assert asked == list(equivalence_cases.CASES)
    printed = console.file.getvalue()
    assert shown in printed
    assert printed.count("1.0e-07") == len(asked) - 1
