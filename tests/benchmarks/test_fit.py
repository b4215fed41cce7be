"""`benchmarks fit`: the order of its processes, its table and its file."""

import importlib.util
import io
import json

import pytest
from rich.console import Console

from benchmarks import fit
from benchmarks.__main__ import main
from benchmarks.fit import FitOptions
from benchmarks.json_worker import run_for_json
from benchmarks.models import build_model, random_batch
from tfdp.bench.child_process import Failure

STEP_SECONDS = {"tfdp": 0.1, "stock": 0.2, "one_device": 0.4}


def result(side, **others):
    step = STEP_SECONDS[side]
    return {
        "side": side,
        "parameters": 12_609_546,
        "median_step_seconds": step,
        "first_step_seconds": 10 * step,
        **others,
    }


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160)


@pytest.fixture
def started(monkeypatch):
    """Replaces the processes; returns the list of sides that were started."""
    sides = []

    def start(module, arguments, timeout_seconds):
        sides.append(arguments[arguments.index("--side") + 1])
        return result(sides[-1])

    monkeypatch.setattr(fit, "run_for_json", start)
    return sides


def test_the_sides_alternate(started, console):
    assert fit.run(FitOptions(model="mlp", replicas=(2,), rounds=3), console) == 0
    assert started == ["tfdp", "stock"] * 3


def test_one_device_is_a_third_side(started, console):
    options = FitOptions(model="mlp", replicas=(2,), rounds=2, one_device=True)
    fit.run(options, console)
    assert started == ["tfdp", "stock", "one_device"] * 2


def test_the_table_compares_tfdp_with_each_side(started, console):
    fit.run(FitOptions(model="mlp", replicas=(2,), rounds=2), console)
    table = console.file.getvalue()
    assert "12.61 M parameters" in table
    stock_step = next(line for line in table.splitlines() if "stock" in line and "ms" in line)
    assert "200.0 ms" in stock_step
    assert "0.500" in stock_step


def test_a_failed_process_is_shown_and_sets_the_exit_code(monkeypatch, console):
    failure = Failure("python -m x", "exited with status 1", "[the cause]")
    monkeypatch.setattr(
        fit,
        "run_for_json",
        lambda module, arguments, timeout: result("tfdp") if "tfdp" in arguments else failure,
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


def test_the_mlp_has_12_6_million_parameters():
    assert build_model("mlp").count_params() == pytest.approx(12.6e6, rel=0.01)


@pytest.mark.parametrize("name", ["mlp", "mobilenet"])
def test_the_random_batch_fits_the_model(name):
    inputs, labels = random_batch(name, 3)
    assert build_model(name).input_shape[1:] == inputs.shape[1:]
    assert (inputs.dtype, labels.dtype, labels.shape) == ("float32", "int32", (3,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "side",
    ["tfdp", *(pytest.param(s, marks=pytest.mark.exhaustive) for s in ("stock", "one_device"))],
)
def test_a_worker_reports_what_it_timed(side):
    words = f"--side {side} --model mlp --replicas 2 --batch 2 --steps 3".split()
    measured = run_for_json("benchmarks.fit_worker", words, timeout_seconds=300)
    assert not isinstance(measured, Failure), measured
    assert measured["parameters"] == 12_609_546
    assert len(measured["step_seconds"]) == 3
    assert measured["first_step_seconds"] > 0
    assert measured["final_loss"] == pytest.approx(measured["final_loss"])
    assert measured["versions"].keys() == {"tfdp", "tensorflow", "keras", "numpy"}


def refusal(capsys, *words):
    """The last line of what the command writes when it refuses with exit code 2."""
    with pytest.raises(SystemExit) as exit_:
        main(["fit", *words])
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "received", "remedy"),
    [
        (["--replicas", "2,two"], "received '2,two'", "do `--replicas 2,4`"),
        (["--replicas", "0"], "received '0'", "do `--replicas 2,4`"),
        (["--replicas", "4", "--processes", "2"], "received 4 and 2", "do `--replicas 2`"),
        (["--rounds", "0"], "received 0", "do `--rounds 5`"),
        (["--timeout", "-1"], "received -1", "do `--timeout 600`"),
        (["--json", "no/where/x"], "'no/where/x'", "do `mkdir -p no/where`"),
    ],
)
def test_a_refusal_says_what_was_received_and_what_to_do(capsys, words, received, remedy):
    message = refusal(capsys, *words)
    assert "must" in message
    assert received in message
    assert remedy in message


def test_a_missing_tensorflow_is_answered_with_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tfdp[cpu]'" in refusal(capsys)


def test_all_models_are_meant_by_all(monkeypatch):
    received = []
    monkeypatch.setattr(fit, "run", lambda options: received.append(options) or 0)
    assert main(["fit", "--model", "all", "--replicas", "2"]) == 0
    assert received[0].models == fit.MODELS
    assert received[0].replicas == (2,)
