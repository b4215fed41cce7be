"""Word from the strategies of a run to its launcher."""

import pytest

from tfdp.cluster.run_status import (
    RankEnd,
    mark_strategy_begun,
    mark_strategy_made,
    ranks_that_wait,
    ranks_without_strategy,
    tell_end,
    told_end,
)

TASK = '{"task": {"type": "worker", "index": 1}}'


def test_a_mark_names_the_rank_and_may_be_made_twice(tmp_path):
    for _ in range(2):
        mark_strategy_made({"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK})
    assert [path.name for path in tmp_path.iterdir()] == ["rank-1-made"]
    assert ranks_without_strategy(str(tmp_path), range(3)) == [0, 2]


def test_a_rank_waits_from_the_beginning_of_its_strategy_to_its_end(tmp_path):
    environ = {"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK}
    assert ranks_that_wait(str(tmp_path), range(3)) == []
    mark_strategy_begun(environ)
    assert ranks_that_wait(str(tmp_path), range(3)) == [1]
    mark_strategy_made(environ)
    assert ranks_that_wait(str(tmp_path), range(3)) == []


@pytest.mark.parametrize("config", [None, "", "{", "{}", "[]", '{"task": {"index": null}}'])
def test_a_process_that_is_no_rank_leaves_no_mark(tmp_path, config):
    environ = {"TFDP_RUN_STATUS": str(tmp_path)}
    mark_strategy_made(environ if config is None else {**environ, "TF_CONFIG": config})
    assert list(tmp_path.iterdir()) == []


def test_without_a_launcher_nothing_happens(tmp_path):
    mark_strategy_made({"TF_CONFIG": TASK})
    mark_strategy_made({"TF_CONFIG": TASK, "TFDP_RUN_STATUS": str(tmp_path / "gone")})
    assert list(tmp_path.iterdir()) == []


def test_of_what_a_rank_tells_of_its_end_the_first_error_and_the_loss_before_it_count(tmp_path):
    environ = {"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK}
    assert told_end(str(tmp_path), 1) == RankEnd()
    tell_end(lost_rank=2, environ=environ)
    tell_end(lost_rank=0, environ=environ)
    assert told_end(str(tmp_path), 1) == RankEnd("", 2)
    tell_end("RankLostError: ...", environ=environ)
    tell_end("OSError: of its clean-up", environ=environ)
    assert told_end(str(tmp_path), 1) == RankEnd("RankLostError: ...", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-1-end"]


def test_a_rank_that_others_lose_after_its_own_error_has_failed_of_itself(tmp_path):
    environ = {"TFDP_RUN_STATUS": str(tmp_path), "TF_CONFIG": TASK}
    tell_end("ValueError: mine", environ=environ)
    tell_end(lost_rank=0, environ=environ)
    assert told_end(str(tmp_path), 1) == RankEnd("ValueError: mine", None)
