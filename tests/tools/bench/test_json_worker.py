"""Workers that print JSON."""

import pytest

from tfdp.tools.bench.json_worker import run_for_json


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Returns a function that runs a program as a module."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(program, *arguments):
        (tmp_path / "some_worker.py").write_text(program)
        return run_for_json("some_worker", arguments, 60.0)

    return run


def test_the_last_line_is_the_result(worker):
    assert worker("import sys; print('noise'); print('[' + sys.argv[1] + ']')", "7") == [7]


@pytest.mark.parametrize("program", ["", "print('no json')"])
def test_a_worker_that_prints_no_json_is_a_failure(worker, program):
    assert "printed no JSON" in worker(program).reason


def test_a_worker_that_fails_is_a_failure(worker):
    assert worker("raise SystemExit(3)").reason == "exited with status 3"
