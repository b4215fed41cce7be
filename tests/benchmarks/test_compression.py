"""`benchmarks compression`: what it trains, and its table."""

import io
import types

import numpy as np
import pytest
from rich.console import Console

from benchmarks import compression
from benchmarks.__main__ import main


@pytest.fixture
def trained(monkeypatch):
    """Replaces the trainings; returns the list of what was asked for."""
    asked = []

    def train(replicas, dtype, epochs):
        asked.append((replicas, dtype, epochs))
        off = 0.5 if dtype else 0.0
        return types.SimpleNamespace(
            weights=[np.array([1.0, -4.0 + off])], history={"loss": [1.5]}, test_accuracy=0.75
        )

    monkeypatch.setattr(compression, "_trained", train)
    monkeypatch.setattr(compression, "split_cpu", lambda replicas: None)
    return asked


def test_each_compression_is_compared_with_one_device_for_each_number(trained):
    console = Console(file=io.StringIO(), width=80)
    assert compression.run((2, 3), 4, console) == 0
    dtypes = [None, "bfloat16", "float16"]
    assert trained == [(1, None, 4), *((n, dtype, 4) for n in (2, 3) for dtype in dtypes)]
    lines = console.file.getvalue().splitlines()
    (line,) = [line for line in lines if "bfloat16" in line and "3 " in line]
    cells = [cell.strip() for cell in line.strip("│ ").split("│")]
    assert cells == ["3", 'Cast("bfloat16")', "1.2e-01", "1.50000", "0.7500"]
    assert max(map(len, lines)) <= 80


@pytest.mark.exhaustive("test_each_compression_is_compared_with_one_device_for_each_number")
def test_the_trainings_differ_in_the_compression_alone():
    compression.split_cpu(2)
    alone, whole, cast = (
        compression._trained(*case, 1).weights for case in ((1, None), (2, None), (2, "bfloat16"))
    )
    assert compression.difference(alone, whole) < 1e-5 < compression.difference(alone, cast) < 1e-2


def test_one_replica_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["compression", "--replicas", "1"])
    assert "at least 2" in capsys.readouterr().err
