"""`benchmarks compile-ahead`, with CPU devices in place of a topology's."""

import dataclasses

import pytest

from benchmarks import compile_ahead


@pytest.fixture
def on_cpu(monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.setattr("tfdp.strategy.xla.xla_devices.described", lambda name: jax.devices()[:4])
    monkeypatch.setattr("tfdp.strategy.xla.mesh_sharding.are_described", lambda devices: True)
    monkeypatch.setattr(compile_ahead, "_versions", lambda: {"libtpu": "none"})
    return compile_ahead.CompileAheadOptions(models=("lstm",), topologies=("v5e:2x2",), examples=2)


@pytest.mark.slow
def test_a_row_says_what_a_step_is_and_whether_it_fits(on_cpu, monkeypatch, capsys):
    assert compile_ahead.run(on_cpu) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["lstm", "v5e:2x2, 4 chips"]
    assert "all-reduce" in cells[3]
    # The gradients of 593,418 weights, in float32, and the loss.
    assert cells[4] == f"{4 * 593_419 / 1e6:.1f}"
    assert cells[5] == "none" and cells[6].endswith("of 15259") and cells[7] == "0"

    monkeypatch.setitem(compile_ahead._CHIP_MEMORY, "v5e", 1e-3)
    assert compile_ahead.run(on_cpu) == 1


@pytest.mark.exhaustive("test_a_row_says_what_a_step_is_and_whether_it_fits")
def test_derived_layouts_cost_what_the_written_ones_do(on_cpu, capsys):
    rows = []
    for layouts in ("written", "auto"):
        options = dataclasses.replace(on_cpu, models=("mlp",), model_axis=2, layouts=layouts)
        assert compile_ahead.run(options) == 0
        cells = capsys.readouterr().out.splitlines()[-1].split("|")
        rows.append([cell.strip() for place, cell in enumerate(cells) if place != 3])  # seconds
    assert rows[0] == rows[1] and rows[0][2] == "v5e:2x2, 2 x 2 chips"


def test_models_without_written_layouts_need_derived_ones():
    with pytest.raises(ValueError, match="or --layouts auto"):
        compile_ahead.CompileAheadOptions(models=("lstm",), model_axis=2)
    assert compile_ahead.CompileAheadOptions(models=("lstm",), model_axis=2, layouts="auto")
