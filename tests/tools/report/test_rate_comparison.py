"""Efficiencies of runs on several numbers of replicas."""

import pytest
from tools.report.logs import start_line, step_line, write_rank

from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.rate_comparison import caveats, scaling
from tfdp.tools.report.summary import headline


def run_of(directory, replicas, seconds, batch=64, **start):
    lines = [start_line(replicas=replicas, **start), step_line(1, examples=batch)]
    lines += [step_line(n, examples=batch, seconds=seconds) for n in (2, 3)]
    run = read_run(write_rank(directory / f"{replicas}-{seconds}", lines))
    return run, headline(run)


def test_rates_are_compared_with_the_run_on_the_fewest_replicas(tmp_path):
    runs = [run_of(tmp_path, n, t) for n, t in ((8, 0.1), (2, 0.32), (4, 0.16))]
    points = scaling(runs)
    assert [point.line.replicas for point in points] == [2, 4, 8]
    assert [point.line.examples_per_second for point in points] == pytest.approx([200, 400, 640])
    assert [point.speedup for point in points] == pytest.approx([1, 2, 3.2])
    assert [point.efficiency for point in points] == pytest.approx([1, 1, 0.8])
    [caveat] = caveats(points)
    assert "strong scaling" in caveat


def test_a_batch_that_grows_with_the_replicas_is_called_weak_scaling(tmp_path):
    points = scaling([run_of(tmp_path, n, 0.5, batch=32 * n) for n in (1, 2, 4)])
    assert [point.efficiency for point in points] == pytest.approx([1, 1, 1])
    assert "weak scaling" in caveats(points)[0]


def test_runs_that_cannot_be_compared_are_said_to_be_so(tmp_path):
    same = scaling([run_of(tmp_path, 2, 0.5), run_of(tmp_path, 2, 0.25)])
    assert "no scaling efficiency" in caveats(same)[0]
    others = scaling([run_of(tmp_path, 2, 0.5), run_of(tmp_path, 4, 0.5, batch=65, parameters=3)])
    assert "batches differ" in caveats(others)[0] and "not runs of one model" in caveats(others)[1]
