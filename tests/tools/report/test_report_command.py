"""`tfdp report` from end to end: what it writes, what it refuses, what it leaves behind."""

import importlib.util
import subprocess
import sys

import pytest
from tools.report.logs import start_line, step_line, write_rank, write_run

from tfdp.tools import cli
from tfdp.tools.report import report_page


def refusal(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["report", *map(str, words)])
    assert exit_.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "must" in message
    return message


@pytest.mark.slow
def test_the_page_is_written_beside_the_logs(tmp_path, capsys):
    logs = write_run(tmp_path / "logs", ranks=2, epochs=1, steps_per_epoch=5)
    assert cli.main(["report", str(logs)]) == 0
    assert capsys.readouterr().out == f"{logs / 'report.html'}: 5 steps of 2 ranks\n"
    assert (logs / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    # Made again, of the directory in which it lies.
    assert cli.main(["report", str(logs)]) == 0
    names = {path.name for path in logs.iterdir()}
    assert names == {"rank0.jsonl", "rank1.jsonl", "manifest.json", "report.html"}


@pytest.mark.slow
def test_runs_are_compared_whether_in_one_option_or_several(tmp_path):
    runs = [write_run(tmp_path / str(n), ranks=n, epochs=1, steps_per_epoch=3) for n in (1, 2, 3)]
    output = tmp_path / "page.html"
    one = ["--compare", *map(str, runs[1:])]
    several = ["--compare", str(runs[1]), "--compare", str(runs[2])]
    for words in (one, several):
        assert cli.main(["report", str(runs[0]), "--output", str(output), *words]) == 0
        assert all(f"{n} replicas" in output.read_text() for n in (2, 4, 6))


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "must hold rank0.jsonl"),
        ([start_line()], "must hold at least one step"),
        ([start_line(0, 2), step_line(1)], "rank 1 is missing"),
        ([start_line(), "broken\n", step_line(1)], "line 2 must be a JSON object"),
        ([start_line(format=2), step_line(1)], "must be of format 1"),
    ],
)
def test_bad_logs_are_refused_and_the_old_page_stays(tmp_path, capsys, lines, what):
    write_rank(tmp_path, lines)
    (tmp_path / "report.html").write_text("old")
    assert what in refusal(capsys, tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"rank0.jsonl", "report.html"}


def test_a_run_to_compare_with_is_checked_like_the_first(tmp_path, capsys):
    logs = write_run(tmp_path / "logs", ranks=1, epochs=1, steps_per_epoch=3)
    assert "there is nothing at" in refusal(capsys, logs, "--compare", tmp_path / "lost")
    assert "each once" in refusal(capsys, logs, "--compare", tmp_path / "x" / ".." / "logs")
    assert not (logs / "report.html").exists()


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("page.txt", "page.html`"),
        ("no/where/page.html", "do `mkdir -p "),
        ("logs", "/logs/tfdp.html`"),
    ],
)
def test_an_output_that_cannot_be_is_refused(tmp_path, capsys, output, remedy):
    logs = write_run(tmp_path / "logs", ranks=1, epochs=1, steps_per_epoch=3)
    message = refusal(capsys, logs, "--output", tmp_path / output)
    assert f"received '{tmp_path / output}'" in message and remedy in message


def test_a_failure_while_writing_leaves_the_old_page_and_nothing_else(tmp_path, monkeypatch):
    logs = write_run(tmp_path / "logs", ranks=1, epochs=1, steps_per_epoch=3)
    (logs / "report.html").write_text("old")
    before = sorted(path.name for path in logs.iterdir())
    # A character that no encoding has: the file is open by then.
    monkeypatch.setattr(report_page, "render", lambda *_, **__: "new" * 100_000 + "\ud800")
    with pytest.raises(UnicodeEncodeError):
        cli.main(["report", str(logs)])
    assert (logs / "report.html").read_text() == "old"
    assert sorted(path.name for path in logs.iterdir()) == before


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_an_answer_and_no_traceback(tmp_path, capsys, monkeypatch):
    logs = write_run(tmp_path / "logs", ranks=1, epochs=1, steps_per_epoch=3)

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_page, "replace_text", full)
    assert "No space left on device" in refusal(capsys, logs)


def test_a_missing_jinja2_is_answered_with_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tfdp[report]'" in refusal(capsys, tmp_path)


@pytest.mark.slow
def test_a_report_needs_no_tensorflow(tmp_path):
    logs = write_run(tmp_path / "logs", ranks=2, epochs=1, steps_per_epoch=5)
    program = (
        "import sys, tfdp.tools.cli\n"
        f"assert tfdp.tools.cli.main(['report', {str(logs)!r}]) == 0\n"
        "print(sorted({'tensorflow', 'keras', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", program]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
