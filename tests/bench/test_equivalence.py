"""The table of what N replicas change, as `tfdp bench equivalence` prints it."""

import re
import subprocess
import sys

import pytest

NUMBER = re.compile(r"\d\.\de[-+]\d\d$")


@pytest.mark.slow
def test_tfdp_equals_one_device_in_every_case_and_the_stock_strategy_in_none():
    # A process of its own: the stock strategy's failures abort every later collective.
    done = subprocess.run(
        [sys.executable, "-m", "tfdp.cli", "bench", "equivalence", "--replicas", "3"],
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
