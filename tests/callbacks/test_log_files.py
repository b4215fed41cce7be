"""One rank's files of a log directory."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdp.callbacks.log_files import LogFiles, plain


def records(files):
    return [json.loads(line) for line in files.path.read_text().splitlines()]


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    files = LogFiles(tmp_path / "new" / "folder", rank=3, tensorboard=False)
    files.line("step", step=1, loss=0.5)
    assert files.path.name == "rank3.jsonl"
    (record,) = records(files)
    assert (record["kind"], record["step"], record["loss"]) == ("step", 1, 0.5)
    files.close()


def test_a_run_that_is_started_again_goes_on_below(tmp_path):
    for step in (1, 2):
        files = LogFiles(tmp_path, 0, tensorboard=False)
        files.line("step", step=step)
        files.close()
    assert [record["step"] for record in records(files)] == [1, 2]


@pytest.mark.parametrize("cut", range(1, 20))
def test_the_half_line_of_a_killed_run_is_dropped(tmp_path, cut):
    files = LogFiles(tmp_path, 0, tensorboard=False)
    files.line("step", step=1)
    files.line("step", step=2)
    files.close()
    files.path.write_bytes(files.path.read_bytes()[:-cut])
    again = LogFiles(tmp_path, 0, tensorboard=False)
    again.line("step", step=3)
    again.close()
    assert [record["step"] for record in records(again)] == [1, 3]


def test_a_file_of_half_a_line_becomes_empty(tmp_path):
    (tmp_path / "rank0.jsonl").write_text('{"kind": "st')
    LogFiles(tmp_path, 0, tensorboard=False).close()
    assert (tmp_path / "rank0.jsonl").read_text() == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Rank 2: `log_dir` must be a folder .*file.*another folder"):
        LogFiles(tmp_path / "file", 2, tensorboard=False)


def test_scalars_are_events_that_tensorboard_reads(tmp_path):
    files = LogFiles(tmp_path, 1, tensorboard=True)
    files.scalars(7, {"seconds": 0.25})
    files.close()
    (path,) = (tmp_path / "tensorboard" / "rank1").iterdir()
    values = {
        value.tag: (event.step, value.simple_value)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert values == {"seconds": (7, 0.25)}


@pytest.mark.slow
@given(st.recursive(st.floats() | st.integers() | st.text(), lambda s: st.lists(s), max_leaves=9))
def test_whatever_is_logged_is_strict_json(value):
    text = json.dumps(plain({"value": value}), allow_nan=False)
    json.loads(text, parse_constant=pytest.fail)


def test_arrays_of_one_number_and_odd_objects_become_numbers_and_texts():
    assert plain(np.float32(0.5)) == 0.5
    assert plain(np.array([0.5, np.nan])) == [0.5, "nan"]
    assert plain(tf.constant(2.0)) == 2.0
    assert plain(math.nan) == "nan" and plain(-math.inf) == "-inf"
    assert plain(pytest).startswith("<module")
