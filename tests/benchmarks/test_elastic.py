"""The picture of an elastic run."""

import io

import numpy as np
import pytest
from rich.console import Console

from benchmarks import elastic
from benchmarks.elastic import ElasticOptions
from benchmarks.faults_run import Run


def run(ranks, by):
    weights = [[np.full(3, 2.0 + by)]] * ranks[-1]
    losses = [(number, 1.0 + by) for number in ranks]
    return Run([], "", 0.0, 1, 0, weights, losses)


@pytest.mark.parametrize(
    ("ranks", "by", "code"),
    [([4, 4, 2, 3, 3], 1e-7, 0), ([4, 4, 2, 3, 3], 1e-3, 1), ([4, 2, 2], 0.0, 1)],
)
def test_the_largest_differences_are_said_and_drawn(ranks, by, code, monkeypatch, tmp_path):
    made = [run([1] * len(ranks), 0.0), run(ranks, by)]
    monkeypatch.setattr(elastic, "one_run", lambda *_, **__: made.pop(0))
    options = ElasticOptions(output=tmp_path / "x.png")
    console = Console(file=io.StringIO())
    assert elastic.run(options, console) == code
    said = console.file.getvalue()
    if ranks[-1] == 3:
        assert f"largest difference of a loss from one device's, relative: {by:.1e}" in said
        assert f"relative to the largest: {by / 2:.1e}" in said
        assert options.output.stat().st_size > 0
    else:
        assert "did not come to these numbers" in said


def test_ranks_that_do_not_change_are_refused():
    with pytest.raises(ValueError, match=r"received 4,2,2; do `--ranks 4,2,3`"):
        ElasticOptions(ranks=(4, 2, 2))
