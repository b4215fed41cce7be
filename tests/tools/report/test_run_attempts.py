"""The attempts of a run in the report, from the lines that `tfdp run` has written."""

import json

import pytest
from tools.report.logs import HOUR, write_run
from tools.report.test_report_page import page_of

from tfdp.base.log_lines import ATTEMPTS
from tfdp.cluster.launch import restarting
from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.verdict import Outcome
from tfdp.tools.report.log_reader import LogError
from tfdp.tools.report.run_attempts import read_attempts


def attempt(directory, code, message, ranks, steps):
    outcome = Outcome(signal=None, timed_out=False, failed=(), unfinished=(), absent=())
    return Attempt(
        *(code, message, outcome, 75.0, ranks), steps=steps, began=HOUR, log_dir=str(directory)
    )


def test_each_attempt_is_drawn_with_its_ranks_steps_time_and_end(tmp_path):
    write_run(tmp_path)
    killed = "rank 3 of 4 failed first, with signal SIGKILL. Its last <b>error</b>: ..."
    for made in (
        attempt(tmp_path, 137, killed, 4, (1, 70)),
        attempt(tmp_path, 75, "ranks 0, 1 of 2 stopped at a checkpoint.", 2, (61, 110)),
        attempt(tmp_path, 0, "", 3, None),
    ):
        assert restarting.keep(made) == ""
    page = page_of(tmp_path)
    assert [value for _, name, value in page.attributes if name == "title"][-3:] == [
        "1. 4 ranks, steps 1–70: failed: 1 min 15 s",
        "2. 2 ranks, steps 61–110: stopped at a checkpoint: 1 min 15 s",
        "3. 3 ranks, steps –: ended well: 1 min 15 s",
    ]
    for text in (
        "rank 3 of 4 failed first, with signal SIGKILL.",
        "all ranks ended well.",
    ):
        assert text in page.words, text


@pytest.mark.slow
def test_a_run_without_attempts_has_no_such_part(tmp_path):
    assert "Each start of all ranks" not in page_of(write_run(tmp_path)).words


def test_a_line_that_a_kill_cut_off_is_left_out_and_a_damaged_one_refused(tmp_path):
    restarting.keep(attempt(tmp_path, 0, "", 1, None))
    path = tmp_path / ATTEMPTS
    whole = path.read_text()
    path.write_text(whole + whole[:20])
    assert len(read_attempts(tmp_path)) == 1
    restarting.keep(attempt(tmp_path, 0, "", 2, None))
    assert [one.ranks for one in read_attempts(tmp_path)] == [1, 2]
    path.write_text(whole + json.dumps({"kind": "attempt", "ranks": 0}) + "\n")
    with pytest.raises(LogError, match=r"attempts.jsonl, line 2: `.*` must be"):
        read_attempts(tmp_path)


def test_a_folder_that_is_gone_is_named(tmp_path):
    said = restarting.keep(attempt(tmp_path / "gone", 0, "", 1, None))
    assert "gone/attempts.jsonl must be writable, and gives: No such file" in said
