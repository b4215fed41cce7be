"""The table of what N replicas change, as `tfdp bench equivalence` prints it."""

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from tfdp.bench import equivalence
from tfdp.bench.processes import Failure

NUMBER = re.compile(r"\d\.\de[-+]\d\d$")


@pytest.mark.slow
def test_tfdp_equals_one_device_in_every_case_and_the_stock_strategy_in_none():
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.cli", "bench", "equivalence", "--replicas", "2"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    cells = [line.strip("│ ").split("│") for line in done.stdout.splitlines() if "│" in line]
    outcomes = [(row[1].strip(), row[2].strip()) for row in cells if len(row) == 3]
    assert len(outcomes) == 13
    for stock, tfdp in outcomes:
        assert NUMBER.match(tfdp) and float(tfdp) <= 1e-5
        assert not NUMBER.match(stock) or float(stock) > 1e-3


def test_the_table_needs_at_least_two_replicas():
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.cli", "bench", "equivalence", "--replicas", "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "`replicas` must be at least 2; received 1" in done.stderr


@pytest.mark.parametrize(
    ("third", "shown"),
    [
        (Failure("python", "was killed after 300 s", "its last words"), "was killed after 300 s"),
        ({"tfdp": {"relative": 2e-5}, "stock": {"relative": float("nan")}}, "NaN"),
        ({"tfdp": {"relative": float("nan")}, "stock": {"error": "SomeError"}}, "SomeError"),
    ],
    ids=["no result", "too far", "not a number"],
)
def test_one_case_that_is_not_equal_fails_the_run_and_leaves_the_others(third, shown, monkeypatch):
    equal = {"tfdp": {"relative": 1e-7}, "stock": {"relative": 0.5}}
    asked = []

    def child(module, arguments, timeout_seconds):
        asked.append(arguments[1])
        return third if len(asked) == 3 else equal

    monkeypatch.setattr(equivalence, "run_for_json", child)
    console = Console(width=200, file=io.StringIO())
    assert equivalence.run(2, console) == 1
    assert asked == list(equivalence.CASES)
    printed = console.file.getvalue()
    assert shown in printed
    assert printed.count("1.0e-07") == len(asked) - 1
