"""The file of raw results."""

import json

import pytest

from tfdp.bench.results import write_results


def test_what_is_written_can_be_read(tmp_path):
    path = tmp_path / "raw.json"
    write_results(path, {"rounds": 2}, [{"seconds": 1.5}], [])
    content = json.loads(path.read_text())
    assert (content["options"], content["results"]) == ({"rounds": 2}, [{"seconds": 1.5}])
    assert content["machine"]["cpus"] >= 1
    assert [p.name for p in tmp_path.iterdir()] == ["raw.json"]


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "raw.json"
    path.write_text("old")
    circular: list = []
    circular.append(circular)
    with pytest.raises(ValueError, match=r"(?i)circular"):
        write_results(path, {}, circular, [])
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["raw.json"]
