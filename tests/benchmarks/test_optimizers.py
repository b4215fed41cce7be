"""`benchmarks optimizers`: every optimizer is timed, on the same variables."""

import io

import pytest
from rich.console import Console

from benchmarks import optimizers
from benchmarks.__main__ import main
from tfdp.tools.bench import bench_models


def test_the_table_has_a_row_for_each_and_ratios_to_the_reference(monkeypatch):
    times = {optimizers.REFERENCE: [0.010, 0.020, 0.030], "tfdp LAMB": [0.012, 0.030, 0.030]}
    monkeypatch.setattr(optimizers, "measure", lambda rounds: times)
    console = Console(width=120, file=io.StringIO())
    assert optimizers.run(3, console) == 0
    rows = [line.split("│") for line in console.file.getvalue().splitlines() if "LAMB" in line]
    assert [cell.strip() for cell in rows[0][1:-1]] == [
        "tfdp LAMB",
        "30.0",
        "12.0-30.0",
        "1.50",
        "1.20",
    ]


@pytest.mark.slow
def test_each_optimizer_is_timed_and_changes_the_weights(monkeypatch):
    built = []

    def small_model(name):
        import keras

        built.append(keras.Sequential([keras.Input([3]), keras.layers.Dense(2)]))
        built[-1].before = built[-1].get_weights()[0]
        return built[-1]

    monkeypatch.setattr(bench_models, "build_model", small_model)
    seconds = optimizers.measure(rounds=2)
    assert set(seconds) == set(optimizers._optimizers())
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())
    assert all((model.get_weights()[0] != model.before).all() for model in built)


def test_no_round_at_all_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["optimizers", "--rounds", "0"])
    assert "`rounds` must be at least 1; received 0; do `--rounds 30`" in capsys.readouterr().err
