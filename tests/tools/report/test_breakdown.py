"""Where a step goes, against NumPy on the lines of the files."""

import numpy as np
import pytest
from tools.report.logs import later_steps, start_line, step_line, write_rank, write_run

from tfdp.tools.report.breakdown import over_time, rank_splits
from tfdp.tools.report.log_directory import read_run


def sampled(directory, rank):
    """The parts of the sampled steps but the epochs' first, one row a step."""
    rows = []
    for values in later_steps(directory, rank):
        if "compute_seconds" in values:
            parts = [values[f"{part}_seconds"] for part in ("input", "compute", "communication")]
            rows.append([*parts, values["seconds"] - sum(parts)])
    return np.array(rows)


def test_each_rank_s_parts_are_the_medians_of_its_sampled_steps(tmp_path):
    splits = rank_splits(read_run(write_run(tmp_path, ranks=3, late_rank=2)))
    for rank, one in enumerate(splits):
        rows = sampled(tmp_path, rank)
        assert one.samples == len(rows) == 33
        assert list(one.split.parts) == ["input", "compute", "communication", "other"]
        assert list(one.split.parts.values()) == pytest.approx(np.median(rows, 0), rel=1e-12)
        expected = np.median(rows, 0)[1] / np.median(rows, 0).sum()
        assert one.split.share("compute") == pytest.approx(expected, rel=1e-12)


def test_over_time_is_the_median_of_the_ranks(tmp_path):
    times = over_time(read_run(write_run(tmp_path, ranks=3, late_rank=2)))
    rows = np.stack([sampled(tmp_path, rank) for rank in range(3)])
    assert [step for step, _ in times] == [n for n in range(1, 181, 5) if n % 60 != 1]
    found = [list(split.parts.values()) for _, split in times]
    np.testing.assert_allclose(found, np.median(rows, 0), rtol=1e-12)


def test_without_sampled_steps_only_input_is_taken_apart(tmp_path):
    lines = [start_line(), *(step_line(n, seconds=0.5, input_seconds=0.2) for n in (1, 2, 3))]
    [one] = rank_splits(read_run(write_rank(tmp_path, lines)))
    assert one.split.parts == pytest.approx({"input": 0.2, "rest": 0.3})
    assert one.split.share("compute") is None


def test_without_any_part_there_is_nothing_to_show(tmp_path):
    run = read_run(write_rank(tmp_path, [start_line(), step_line(1), step_line(2)]))
    assert rank_splits(run) == () and over_time(run) == []


def test_waiting_in_the_loss_is_a_part_and_never_more_than_is_left(tmp_path):
    parts = {"seconds": 0.5, "compute_seconds": 0.2, "communication_seconds": 0.1}
    for meeting, shown, other in ((0.15, 0.15, 0.05), (9.0, 0.2, 0.0)):
        step = step_line(1, meeting_seconds=meeting, **parts)
        [one] = rank_splits(read_run(write_rank(tmp_path, [start_line(), step])))
        expected = {"compute": 0.2, "meeting": shown, "communication": 0.1, "other": other}
        assert one.split.parts == pytest.approx(expected)


def test_parts_that_are_measured_longer_than_the_step_leave_nothing_over(tmp_path):
    step = step_line(1, seconds=0.5, input_seconds=0.2, compute_seconds=0.4)
    [one] = rank_splits(read_run(write_rank(tmp_path, [start_line(), step])))
    assert one.split.parts == {"input": 0.2, "compute": 0.4, "other": 0.0}
