"""`benchmarks compression`: what it trains, and its table."""

import io
import types

import harness  # noqa: F401, splits the CPU
import numpy as np
import pytest
import tiers
from rich.console import Console

from benchmarks import compression, compression_cost
from benchmarks.__main__ import main


@pytest.fixture
def trained(monkeypatch):
    """Replaces the trainings; returns the list of what was asked for."""
    asked = []

    def train(replicas, name, epochs):
        asked.append((replicas, name, epochs))
        off = 0.0 if name == "None" else 0.5
        run = types.SimpleNamespace(
            weights=[np.array([1.0, -4.0 + off])], history={"loss": [1.5]}, test_accuracy=0.75
        )
        return compression.Measured(run, 1234.0)

    monkeypatch.setattr(compression, "_trained", train)
    monkeypatch.setattr(compression, "split_cpu", lambda replicas: None)
    return asked


def test_each_compression_is_compared_with_one_device_for_each_number(trained):
    console = Console(file=io.StringIO(), width=80)
    assert compression.run((2, 3), 4, console) == 0
    names = compression.COMPRESSIONS
    assert trained == [(1, "None", 4), *((n, name, 4) for n in (2, 3) for name in names)]
    lines = console.file.getvalue().splitlines()
    (line,) = [line for line in lines if "bfloat16" in line and "3 " in line]
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert cells == ["3", 'Cast("bfloat16")', "1.2", "1.2e-01", "1.50000", "0.7500"]
    assert max(map(len, lines)) <= 80


@pytest.mark.exhaustive("test_each_compression_is_compared_with_one_device_for_each_number")
def test_the_trainings_differ_in_the_compression_alone():
    names = ["None", 'Cast("bfloat16")', "ErrorFeedback(Int8())"]
    alone = compression._trained(1, "None", 1)
    whole, cast, int8 = (compression._trained(2, name, 1) for name in names)
    off = [
        compression.difference(alone.run.weights, found.run.weights)
        for found in (whole, cast, int8)
    ]
    assert off[0] < 1e-5 < off[1] < 1e-2 and 1e-5 < off[2] < 0.1
    # The loss travels with whole gradients.
    assert whole.bytes_per_step / 2 == pytest.approx(cast.bytes_per_step, rel=1e-3)
    assert int8.bytes_per_step < 0.3 * whole.bytes_per_step


@pytest.mark.parametrize(
    "name", tiers.first_of("ErrorFeedback(Int8())", *compression.COMPRESSIONS[1:])
)
def test_what_a_compression_computes_is_timed(name):
    cost = compression_cost.measured(name, 1, rounds=1)
    assert cost.seconds > 0
    model = {"Cast": 0.75, "Int8": 0.381, "Sign": 0.048, "TopK": 0.06, "RandomK": 0.15}
    rank_4 = 1.5 * 4 * (1024 + 244) / (1024 * 244)
    share = next((share for inner, share in model.items() if inner in name), rank_4)
    assert cost.share == pytest.approx(share, rel=0.03)


def test_one_replica_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["compression", "--replicas", "1"])
    assert "at least 2" in capsys.readouterr().err
