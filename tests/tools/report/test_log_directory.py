"""Log directories: whole, half-written, restarted, damaged, and not there at all."""

import json

import pytest
from tools.report.logs import HOUR, line, start_line, step_line, write_rank, write_run
from tools.report.test_report_page import page_of

from tfdp.base.log_lines import ATTEMPTS
from tfdp.cluster.launch import restarting
from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.verdict import Outcome
from tfdp.tools.report.log_directory import read_attempts, read_run
from tfdp.tools.report.log_reader import LogError


def refusal(directory):
    with pytest.raises(LogError) as error:
        read_run(directory)
    message = str(error.value)
    assert "must" in message
    return message


def end_line():
    return line(kind="end", time=HOUR + 99, step=2, seconds=99)


def test_a_whole_directory_is_read_without_a_note(tmp_path):
    run = read_run(write_run(tmp_path / "logs", ranks=3, epochs=2, steps_per_epoch=4))
    assert [log.start.rank for log in run.ranks] == [0, 1, 2]
    assert [step.step for step in run.first.steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [epoch.step for epoch in run.first.epochs] == [4, 8]
    assert run.manifest["model"]["name"] == "fashion_cnn"
    assert all(log.ended for log in run.ranks)
    assert run.notes == ()


def test_a_directory_that_is_not_there_is_named(tmp_path):
    message = refusal(tmp_path / "lost")
    assert "there is nothing at" in message and "lost" in message
    (tmp_path / "file").write_text("")
    assert "there is a file at" in refusal(tmp_path / "file")


@pytest.mark.parametrize("files", [(), ("rank0.jsonl",), ("rank-0.log", "rankA.jsonl")])
def test_a_directory_without_a_start_says_what_to_train_with(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("")
    assert f"tfdp.callbacks.Telemetry('{tmp_path}')" in refusal(tmp_path)


def test_missing_ranks_are_named_with_their_files(tmp_path):
    write_run(tmp_path, ranks=4, epochs=1, steps_per_epoch=3)
    (tmp_path / "rank1.jsonl").unlink()
    (tmp_path / "rank3.jsonl").write_text("")  # as of a process that has not begun to write
    message = refusal(tmp_path)
    assert "each of the run's 4 ranks" in message
    assert "ranks 1, 3 are missing" in message
    assert "Copy rank1.jsonl, rank3.jsonl there" in message


UPGRADE = "pip install --upgrade 'tfdp[report]'"
BROKEN = ["{", "no JSON", "3", '"text"', "\x00\x00", '{"a": 1e', "\xff"]
WRONG = [
    ({"seconds": "long"}, "`seconds` must be a number of at least 0, but received 'long'"),
    ({"seconds": -1}, "`seconds` must be a number of at least 0, but received -1"),
    ({"seconds": float("nan")}, "`seconds` must be a number of at least 0"),
    ({"step": 0}, "`step` must be a whole number of at least 1, but received 0"),
    ({"step": True}, "`step` must be a whole number of at least 1, but received True"),
    ({"examples": "all"}, "`examples` must be a whole number of at least 0"),
    ({"loss": [1]}, "`loss` must be a number, but received [1]"),
    ({"trust_ratios": 3}, "`trust_ratios` must be an object of numbers"),
    ({"kind": 7}, "`kind` must be a text, but received 7"),
    ({"time": None}, "`time` must be a number"),
]


@pytest.mark.parametrize(
    ("rank", "lines", "says"),
    [
        (1, [start_line(1, 2), step_line(1)], ["rank 0 is missing"]),
        (0, [start_line()], ["rank 0 has logged none"]),
        (0, [start_line(format=2), step_line(1)], ["line 1 must be of format 1", UPGRADE]),
        (0, [step_line(1)], ["line 1: the first line must be the start of a run"]),
        (0, [start_line(1, 2), step_line(1)], ["Rename it to rank1.jsonl"]),
        *(
            (0, [start_line(), step_line(1), each + "\n", step_line(2)], ["line 3 must be a JSON"])
            for each in BROKEN
        ),
        *(
            (
                0,
                [start_line(), step_line(1), step_line(2, **each)],
                [f"line 3: {what}"],
            )
            for each, what in WRONG
        ),
    ],
)
def test_a_file_that_tells_no_run_is_refused_with_what_is_wrong(tmp_path, rank, lines, says):
    (tmp_path / f"rank{rank}.jsonl").write_text("".join(lines), encoding="latin-1")
    message = refusal(tmp_path)
    assert all(words in message for words in says), message


def test_a_rank_without_a_step_is_noted(tmp_path):
    write_rank(tmp_path, [start_line(0, 2), step_line(1)])
    write_rank(tmp_path, [start_line(1, 2)], rank=1)
    assert "Without any step so far: rank 1." in read_run(tmp_path).notes


def test_a_newer_manifest_asks_for_a_newer_tfdp(tmp_path):
    write_rank(tmp_path, [start_line(), step_line(1)])
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    assert "manifest.json must be of format 1" in refusal(tmp_path)


@pytest.mark.parametrize("content", ["", '{"format"', "[]", "[" * 100_000, "\xff"])
def test_a_damaged_manifest_takes_nothing_from_the_numbers(tmp_path, content):
    write_rank(tmp_path, [start_line(), step_line(1)])
    (tmp_path / "manifest.json").write_text(content, encoding="latin-1")
    run = read_run(tmp_path)
    assert run.manifest is None
    assert any("manifest.json is damaged" in note for note in run.notes)


def test_a_run_without_a_manifest_is_read(tmp_path):
    assert read_run(write_rank(tmp_path, [start_line(), step_line(1)])).manifest is None


def test_wherever_the_last_line_is_cut_the_rest_is_read(tmp_path):
    before, last = start_line() + step_line(1), step_line(2, host="ü")
    whole = len(last.encode()) - 1
    for length in range(1, whole):
        (tmp_path / "rank0.jsonl").write_bytes(before.encode() + last.encode()[:length])
        run = read_run(tmp_path)
        assert [step.step for step in run.first.steps] == [1]
        assert "rank0.jsonl was cut off while line 3 was written; left out." in run.notes
    (tmp_path / "rank0.jsonl").write_bytes(before.encode() + last.encode()[:whole])
    assert [step.step for step in read_run(tmp_path).first.steps] == [1, 2]


def test_numbers_without_bounds_are_read_or_refused_but_never_crash(tmp_path):
    huge = step_line(1)[:-2] + ', "loss": 1' + "0" * 400 + "}\n"
    run = read_run(write_rank(tmp_path, [start_line(), huge]))
    assert run.first.steps[0].loss == float("inf")
    deep = '{"kind": ' + "[" * 100_000 + "\n"
    write_rank(tmp_path, [start_line(), deep, step_line(1)])
    assert "line 2 must be a JSON object" in refusal(tmp_path)


def test_kinds_of_lines_that_are_not_known_are_passed_over(tmp_path):
    write_rank(tmp_path, [start_line(), line(kind="validation", time=1.0, epoch=0), step_line(1)])
    assert len(read_run(tmp_path).first.steps) == 1


@pytest.mark.parametrize(
    "half", ["", '{"kind": "step", "tim', '{"kind": "step", "tim\n', "\x00\x00\x00\n"]
)
def test_a_restart_goes_on_after_a_line_that_was_cut_off(tmp_path, half):
    lines = [start_line(), step_line(1), half, start_line(time=HOUR + 50), step_line(2), end_line()]
    run = read_run(write_rank(tmp_path, lines))
    assert [step.step for step in run.first.steps] == [1, 2]
    assert run.first.ended
    assert "The run was started 2 times; it went on at step 2." in run.notes
    assert any("cut off while line 3" in note for note in run.notes) == bool(half)


def test_steps_that_a_restart_repeats_are_shown_once(tmp_path):
    def epoch(number, step):
        logs = {"loss": float(number)}
        return line(kind="epoch", time=HOUR + 60, epoch=number, step=step, seconds=1, logs=logs)

    first = [step_line(n, loss=1.0) for n in range(1, 7)]
    again = [step_line(n, loss=2.0) for n in range(4, 8)]
    run = read_run(
        write_rank(
            tmp_path,
            [
                start_line(),
                *first[:3],
                epoch(0, 3),
                *first[3:],
                epoch(7, 6),
                start_line(),
                *again,
                epoch(1, 7),
            ],
        )
    )
    assert [(step.step, step.loss) for step in run.first.steps] == [
        *((n, 1.0) for n in (1, 2, 3)),
        *((n, 2.0) for n in (4, 5, 6, 7)),
    ]
    assert [epoch.epoch for epoch in run.first.epochs] == [0, 1]
    assert any(note.startswith("3 steps were repeated") for note in run.notes)


def test_an_epoch_may_have_several_stragglers_and_a_restart_names_them_anew(tmp_path):
    def late(epoch, rank):
        values = {"epoch": epoch, "rank": rank, "late_seconds": 0.1, "samples": 9}
        return line(kind="straggler", time=HOUR, **values)

    first = [start_line(), step_line(1), late(0, 3), late(0, 2), late(1, 1)]
    again = [start_line(), step_line(2), late(1, 3), late(1, 0)]
    run = read_run(write_rank(tmp_path, [*first, *again]))
    found = [(entry.epoch, entry.rank) for entry in run.first.stragglers]
    assert found == [(0, 3), (0, 2), (1, 3), (1, 0)]


def test_a_restart_on_fewer_ranks_leaves_the_others_files_out(tmp_path):
    write_run(tmp_path, ranks=4, epochs=1, steps_per_epoch=3, ended=False)
    for rank in (0, 1):
        with open(tmp_path / f"rank{rank}.jsonl", "a") as file:
            file.write(start_line(rank, 2, time=HOUR + 500) + step_line(4))
    run = read_run(tmp_path)
    assert len(run.ranks) == 2 and run.start.replicas == 4
    assert any("ranks 2, 3 are of an earlier start" in note for note in run.notes)


def test_a_directory_can_be_read_while_it_is_written(tmp_path):
    """Every prefix of the ranks' files is read, or refused by name; none crashes."""
    write_run(tmp_path / "whole", ranks=2, epochs=1, steps_per_epoch=3)
    contents = [(tmp_path / "whole" / f"rank{rank}.jsonl").read_bytes() for rank in (0, 1)]
    steps = set()
    for length in range(0, len(contents[0]) + 40, 97):
        for rank, content in enumerate(contents):
            growing = tmp_path / "growing"
            growing.mkdir(exist_ok=True)
            (growing / f"rank{rank}.jsonl").write_bytes(content[: max(0, length - 40 * rank)])
        try:
            steps.add(len(read_run(growing).first.steps))
        except LogError as error:
            assert "must hold" in str(error)
            steps.add(None)
    assert steps == {None, 1, 2, 3}


def test_what_a_log_says_is_what_is_read(tmp_path):
    values = {
        "input_seconds": 0.1,
        "compute_seconds": 0.2,
        "communication_seconds": 0.05,
        "first_bucket_wait_seconds": 0.01,
        "loss": float("nan"),
        "bytes_sent": 100.0,
        "loss_scale": 32768.0,
        "skipped_steps": 1,
        "dropped_examples": 3,
        "gradient_norm": float("inf"),
        "trust_ratios": {"min": 0.1, "median": 0.2, "max": 0.3},
    }
    run = read_run(write_rank(tmp_path, [start_line(), step_line(1, **values)]))
    step = run.first.steps[0]
    assert json.dumps({name: getattr(step, name) for name in values}) == json.dumps(values)


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
