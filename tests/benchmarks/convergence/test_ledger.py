"""The file of finished runs, whole or not."""

import json

import pytest
from sweep_records import outcome

from benchmarks.convergence import ledger
from benchmarks.convergence.convergence_options import ConvergenceOptions

OPTIONS = ConvergenceOptions("mlp")
RUNS = [OPTIONS.run("lamb", 4096, rate, 0) for rate in (0.1, 0.2, 0.3)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.jsonl"


def test_what_is_appended_is_read_again(path):
    finished = {RUNS[0]: outcome(0.5), RUNS[1]: outcome(None)}
    for run, result in finished.items():
        ledger.append(path, run, result)
    assert ledger.read(path) == finished
    assert len(path.read_text().splitlines()) == 2


def test_no_file_holds_no_runs(path):
    assert ledger.read(path) == {}


def test_every_cut_of_the_last_line_is_passed_over_and_healed(path):
    ledger.append(path, RUNS[0], outcome(0.5))
    first = path.read_bytes()
    ledger.append(path, RUNS[1], outcome(0.6))
    whole = path.read_bytes()
    for end in range(len(first), len(whole)):
        path.write_bytes(whole[:end])
        assert ledger.read(path) == {RUNS[0]: outcome(0.5)}
    ledger.append(path, RUNS[2], outcome(0.7))
    assert ledger.read(path) == {RUNS[0]: outcome(0.5), RUNS[2]: outcome(0.7)}
    assert path.read_bytes().startswith(first)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda line: line[:40], r"runs.jsonl, which is none \(.*remove that line"),
        (lambda line: "", "line 2"),
        (lambda line: "[]", "list"),
        (lambda line: line.replace('"seed"', '"sead"'), r"'sead', 'seed'\] are missing or unknown"),
        (lambda line: line.replace('"learning_rate":0.2', '"learning_rate":"0.2"'), "'0.2' is no"),
        (lambda line: line.replace('"loss_by_epoch":[', '"loss_by_epoch":[[],'), "line 2"),
        (lambda line: line.replace('"lamb"', "[]"), "line 2"),
    ],
    ids=["cut", "empty", "no object", "another field", "another type", "no numbers", "a list"],
)
def test_another_line_that_is_none_is_named(path, spoil, reason):
    for run in RUNS:
        ledger.append(path, run, outcome(0.5))
    lines = path.read_text().splitlines()
    lines[1] = spoil(lines[1])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ledger.LedgerError, match=reason) as raised:
        ledger.read(path)
    assert "line 2" in str(raised.value)


def test_a_loss_that_is_no_number_is_never_written(path):
    bad = json.loads('{"x": NaN}')["x"]
    with pytest.raises(ValueError, match="JSON compliant"):
        ledger.append(path, RUNS[0], outcome(bad))
    assert ledger.read(path) == {}


def test_two_at_once_are_refused_and_one_after_the_other_is_not(path):
    with ledger.locked(path):
        ledger.append(path, RUNS[0], outcome(0.5))
        with pytest.raises(ledger.LedgerError, match=r"--minutes 0"), ledger.locked(path):
            pass
    with ledger.locked(path):
        ledger.append(path, RUNS[1], outcome(0.5))
    assert len(ledger.read(path)) == 2
