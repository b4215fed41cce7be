"""Headline numbers and curves, against NumPy on the lines of the files."""

import numpy as np
import pytest
from tools.report.logs import (
    HOUR,
    later_steps,
    line,
    raw_steps,
    start_line,
    step_line,
    write_rank,
    write_run,
)

from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.rank_log import steady
from tfdp.tools.report.summary import curves, headline, skipped, traffic


def test_the_headline_agrees_with_numpy(tmp_path):
    run = read_run(write_run(tmp_path, ranks=2, loss_scale=True))
    raw = later_steps(tmp_path)
    assert len(raw) == 177
    seconds = np.array([values["seconds"] for values in raw])
    line_ = headline(run)
    assert line_.examples_per_second == pytest.approx(256 * len(raw) / seconds.sum(), rel=1e-12)
    assert line_.step_seconds == pytest.approx(np.median(seconds), rel=1e-12)
    assert line_.examples_per_step == 256
    assert (line_.steps, line_.epochs, line_.epochs_planned) == (180, 3, 3)
    assert (line_.replicas, line_.ranks, line_.hosts) == (4, 2, ("node-0",))
    assert line_.ended and not line_.only_first
    assert line_.logs.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    raw = raw_steps(tmp_path)
    assert skipped(run.first.steps) == (sum(values["skipped_steps"] for values in raw), 180)
    [first, _] = traffic(run)
    assert (first.step_bytes, first.total_bytes) == (9_758_652, 180 * 9_758_652)


def test_executions_of_several_steps_count_by_their_steps(tmp_path):
    lines = [start_line(steps_per_execution=4)]
    lines += [step_line(4, steps=4, examples=256, seconds=9.0)]  # compiled
    lines += [step_line(8, steps=4, examples=256, seconds=2.0)]
    lines += [step_line(9, steps=1, examples=64, seconds=7.0)]  # compiled too
    lines += [step_line(13, steps=4, examples=256, seconds=4.0)]
    lines += [step_line(14, steps=1, examples=64, seconds=2.0)]
    run = read_run(write_rank(tmp_path, lines))
    assert [step.step for step in steady(run.first)] == [8, 13, 14]
    line_ = headline(run)
    assert line_.examples_per_second == pytest.approx((256 + 256 + 64) / (2 + 4 + 2))
    assert line_.step_seconds == np.median([2 / 4, 4 / 4, 2])
    assert line_.steps == 14


def test_each_start_s_first_execution_is_left_out(tmp_path):
    lines = [start_line(), step_line(1, seconds=9.0), step_line(2)]
    lines += [start_line(), step_line(3, seconds=9.0), step_line(4)]
    run = read_run(write_rank(tmp_path, lines))
    assert [step.step for step in steady(run.first)] == [2, 4]


def test_a_run_of_first_steps_alone_says_so(tmp_path):
    line_ = headline(read_run(write_rank(tmp_path, [start_line(), step_line(1, seconds=8.0)])))
    assert line_.only_first and line_.step_seconds == 8.0
    assert line_.logs == {} and line_.epochs == 0


def test_the_time_between_a_kill_and_a_restart_is_no_training(tmp_path):
    lines = [start_line(), step_line(1), step_line(5)]  # written at HOUR + 1 and + 5
    lines += [start_line(time=HOUR + 1000), step_line(6, time=HOUR + 1007)]
    line_ = headline(read_run(write_rank(tmp_path, lines)))
    assert line_.duration_seconds == 5 + 7
    assert not line_.ended and line_.last_time == HOUR + 1007


def test_of_epochs_of_one_step_only_the_compiled_one_is_left_out(tmp_path):
    lines = [start_line(), *(step_line(n, epoch=n - 1, seconds=10 / n**3) for n in (1, 2, 3))]
    run = read_run(write_rank(tmp_path, lines))
    assert [step.step for step in steady(run.first)] == [2, 3]
    assert headline(run).only_first


def test_without_counted_examples_there_is_no_rate(tmp_path):
    lines = [start_line(), *(step_line(n, examples=None) for n in (1, 2, 3))]
    line_ = headline(read_run(write_rank(tmp_path, lines)))
    assert line_.examples_per_second is None and line_.examples_per_step is None
    assert line_.step_seconds == 0.5


def test_no_time_at_all_gives_no_rate(tmp_path):
    lines = [start_line(), step_line(1, seconds=0), step_line(2, seconds=0)]
    assert headline(read_run(write_rank(tmp_path, lines))).examples_per_second is None


def test_curves_pair_training_with_validation(tmp_path):
    def epoch(number, **logs):
        return line(kind="epoch", time=HOUR, epoch=number, step=1, seconds=1, logs=logs)

    lines = [start_line(), step_line(1), epoch(0, loss=2.0, auc=0.5)]
    lines += [epoch(1, loss=1.0, auc=0.7, val_loss=1.5, head_loss=0.3)]
    found = {curve.name: curve for curve in curves(read_run(write_rank(tmp_path, lines)).first)}
    assert list(found) == ["loss", "head_loss", "auc"]
    assert found["loss"].training == ((1, 2.0), (2, 1.0))
    assert found["loss"].validation == ((2, 1.5),)
    assert found["auc"].validation == ()
