"""Word from the ranks of a run to its launcher."""

import os
import subprocess
import sys

import pytest

from tfdp.cluster.run_status import RankStatus, ranks_without_strategy, tell, told

TASK = '{"task": {"type": "worker", "index": 1}}'


@pytest.fixture
def environ(tmp_path):
    """What `tfdp run` sets in the environment of rank 1."""
    return {"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK}


def test_a_rank_tells_one_thing_after_the_other(tmp_path, environ):
    for _ in range(2):
        tell(environ, begun=True)
    assert told(str(tmp_path), 1) == RankStatus(begun=True)
    tell(environ, made=True, log_dir="/logs")
    tell(environ, can_stop=True)
    assert told(str(tmp_path), 1) == RankStatus(True, True, True, "/logs")
    tell(environ, can_stop=False)
    assert told(str(tmp_path), 1) == RankStatus(True, True, False, "/logs")
    assert {path.name for path in tmp_path.iterdir()} == {"rank-1-status", "rank-1-status.lock"}
    assert ranks_without_strategy(str(tmp_path), range(3)) == [0, 2]


@pytest.mark.parametrize("config", [None, "", "{", "{}", "[]", '{"task": {"index": null}}'])
def test_a_process_that_is_no_rank_tells_nothing(tmp_path, config):
    environ = {"TFDP_RUN_STATUS": str(tmp_path)}
    tell(environ if config is None else {**environ, "TF_CONFIG": config}, made=True)
    assert list(tmp_path.iterdir()) == []


def test_without_a_launcher_nothing_happens(tmp_path):
    tell({"TF_CONFIG": TASK}, made=True)
    tell({"TF_CONFIG": TASK, "TFDP_RUN_STATUS": str(tmp_path / "gone")}, made=True)
    assert list(tmp_path.iterdir()) == []


def test_of_an_end_the_first_error_and_the_rank_that_was_lost_before_it_count(tmp_path, environ):
    tell(environ, lost_rank=2)
    tell(environ, lost_rank=0)
    assert told(str(tmp_path), 1) == RankStatus(lost_rank=2)
    tell(environ, error="RankLostError: ...")
    tell(environ, error="OSError: of its clean-up")
    assert told(str(tmp_path), 1) == RankStatus(error="RankLostError: ...", lost_rank=2)


def test_a_rank_that_loses_others_after_its_own_error_has_failed_of_itself(tmp_path, environ):
    tell(environ, error="ValueError: mine")
    tell(environ, lost_rank=0)
    assert told(str(tmp_path), 1) == RankStatus(error="ValueError: mine")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("raise ValueError('mine')", "ValueError: mine"),
        ("os.kill(os.getpid(), 9)", None),
        ("os._exit(3)", None),
    ],
)
def test_an_error_that_nothing_catches_is_told_and_a_kill_is_not(tmp_path, environ, end, error):
    code = f"import os\nfrom tfdp.cluster.run_status import tell\ntell(made=True)\n{end}"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env={**os.environ, **environ}, capture_output=True, check=False)
    assert done.returncode != 0
    status = told(str(tmp_path), 1)
    assert status.made
    assert status.error == error or status.error.splitlines()[-1] == error
    assert (error or "") in done.stderr.decode()
