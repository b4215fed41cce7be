"""The table of two partitioners, as `benchmarks partitioners` prints it."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from benchmarks import partitioners
from benchmarks.partitioners_programs import difference

ALIKE = {"values": 1e-7, "changes": 2e-7, "unlike": []}
FAR = {"values": 1e-7, "changes": 2e-3, "unlike": []}
REFUSED = {
    "error": "PartitionError",
    "says": "in user code:\n PartitionError: a program must\nhave none",
}


def measured(name, xla=ALIKE, tfdp=ALIKE, **others):
    return {"program": name, "xla 4": xla, "tfdp 2": tfdp, "both": xla, **others}


def shown(monkeypatch, tmp_path, found, names=None, before=()):
    """The exit code of the command over programs of these measurements, and what it prints."""
    from benchmarks import partitioners_programs

    asked = []

    def worker(missing):
        asked.extend(missing)
        yield from (each for each in found if each["program"] in missing)

    names = [each["program"] for each in found] if names is None else names
    monkeypatch.setattr(partitioners_programs, "programs", lambda: dict.fromkeys(names))
    monkeypatch.setattr(
        partitioners_programs, "tolerance", lambda name: {"half": 1e-2}.get(name, 0.0)
    )
    monkeypatch.setattr(partitioners, "_measured", worker)
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(each) + "\n" for each in before))
    console = Console(width=300, file=io.StringIO())
    code = partitioners.run(results, console)
    return code, console.file.getvalue(), asked


def test_a_row_has_the_larger_difference_of_each_side(monkeypatch, tmp_path):
    found = [measured("one"), measured("two", compiled=ALIKE)]
    code, printed, _ = shown(monkeypatch, tmp_path, found)
    assert code == 0
    assert "| one | 2.0e-07 | 2.0e-07 | 2.0e-07 |" in printed
    assert "| two (compiled) | 2.0e-07" in printed


def test_a_program_that_was_compared_with_one_device_of_jax_says_so(monkeypatch, tmp_path):
    found = measured("three", own=FAR)
    del found["both"]
    code, printed, _ = shown(monkeypatch, tmp_path, [found])
    assert code == 0
    assert "| three (XLA: its own) | 2.0e-07 | 2.0e-07 |  |" in printed


def test_what_is_refused_is_listed_with_its_reason_and_is_no_difference(monkeypatch, tmp_path):
    code, printed, _ = shown(monkeypatch, tmp_path, [measured("text", xla=REFUSED)])
    assert code == 0
    assert "| text | 2.0e-07 | PartitionError | PartitionError |" in printed
    assert "- text: PartitionError: a program must have none" in printed


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (measured("far", xla=FAR), 1),
        (measured("far", tfdp=FAR), 1),
        (measured("half", xla=FAR), 0),
        (measured("unlike", xla=ALIKE | {"unlike": ["kernel"]}), 1),
        (measured("broken", xla={"error": "AttributeError", "says": ""}), 1),
    ],
)
def test_a_difference_that_nobody_declared_fails_the_run(found, code, monkeypatch, tmp_path):
    assert shown(monkeypatch, tmp_path, [found])[0] == code


def test_what_was_measured_is_not_run_again_and_what_was_not_is_named(monkeypatch, tmp_path):
    before, after = measured("before"), measured("after")
    code, printed, asked = shown(
        monkeypatch, tmp_path, [after], ["before", "after", "lost"], [before]
    )
    assert asked == ["after", "lost"]
    assert code == 1
    assert "Not measured: lost." in printed
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("actual", "expected", "apart"),
    [
        ([np.array([1.0, 2.5]), np.array([0.0])], [np.array([1.0, 2.0]), np.array([0.0])], 0.25),
        ({"loss": [1.0, 3.0]}, {"loss": [1.0, 2.0]}, 0.5),
        ([np.array([1, 2])], [np.array([1, 3])], math.inf),
        ([np.array([np.nan])], [np.array([1.0])], math.inf),
        ([np.array([np.nan, 1.0])], [np.array([np.nan, 1.0])], 0.0),
        ([np.zeros(2)], [np.zeros(3)], math.inf),
        ([np.zeros(2)], [], math.inf),
        ({"a": None}, {"b": None}, math.inf),
    ],
)
def test_a_difference_is_relative_to_the_largest_value_of_its_kind(actual, expected, apart):
    assert difference(actual, expected) == apart
