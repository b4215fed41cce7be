"""`benchmarks synchronization`: what it trains, and its table."""

import io
import types

import harness  # noqa: F401 # whose devices the trainings take
import pytest
from rich.console import Console

from benchmarks import synchronization
from benchmarks.__main__ import main


def test_each_synchronization_is_trained_for_each_number_and_seed(monkeypatch):
    asked = []

    def train(*arguments):
        asked.append(arguments)
        return types.SimpleNamespace(
            history={"loss": [1.5 - arguments[3]]}, test_accuracy=0.5 + 0.25 * arguments[-1]
        )

    monkeypatch.setattr(synchronization, "_trained", train)
    monkeypatch.setattr(synchronization, "split_cpu", lambda replicas: None)
    monkeypatch.setattr(synchronization, "_steps", lambda: 90)
    monkeypatch.setattr(synchronization, "_bytes_of_weights", lambda: 90_000)
    console = Console(file=io.StringIO(), width=90)
    assert synchronization.run((2, 4), 3, 2, console) == 0
    names = synchronization.SYNCHRONIZATIONS
    rates = (0.02, 0.005)
    assert asked == [
        (n, name, 3, rate, seed)
        for n in (2, 4)
        for name in names
        for rate in rates
        for seed in (0, 1)
    ]
    lines = console.file.getvalue().splitlines()
    (line,) = [line for line in lines if "DiLoCo(50)" in line and "4 " in line]
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert cells == ["4", "DiLoCo(50)", "3.0", "0.02", "1.4800", "0.6250", "0.500-0.750"]
    assert max(map(len, lines)) <= 90


@pytest.mark.slow
@pytest.mark.exhaustive("test_each_synchronization_is_trained_for_each_number_and_seed")
def test_trainings_differ_in_the_synchronization():
    whole, local = (
        synchronization._trained(2, name, 1, 0.02, 0) for name in ("None", "LocalSGD(50)")
    )
    assert whole.history["loss"] != local.history["loss"]
    assert whole.history["loss"] == pytest.approx(local.history["loss"], rel=0.2)


def test_one_replica_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["synchronization", "--replicas", "1"])
    assert "at least 2" in capsys.readouterr().err
