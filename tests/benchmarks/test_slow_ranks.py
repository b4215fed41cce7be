"""`benchmarks slow-ranks`: ways to wait, and the table."""

import io

import numpy as np
import pytest
from rich.console import Console

from benchmarks import slow_ranks
from benchmarks.__main__ import main


@pytest.mark.parametrize("name", slow_ranks.WAYS)
def test_where_nothing_is_slow_only_what_is_left_out_is_lost(name):
    rate = slow_ranks.WAYS[name](np.ones((100, 8)))
    lost = {"all but 1": 1, "all but 2": 2}.get(name, 0)
    assert rate == pytest.approx(1 - lost / 8)


def test_nobody_outruns_a_rank_that_is_always_slow_but_who_leaves_it_out():
    seconds = np.ones((1000, 8))
    seconds[:, 3] = 2.0
    rates = {name: rate(seconds) for name, rate in slow_ranks.WAYS.items()}
    assert rates.pop("all but 1") == pytest.approx(7 / 8)
    assert rates.pop("all but 2") == pytest.approx(6 / 8)
    assert all(rate == pytest.approx(0.5, abs=0.01) for rate in rates.values()), rates


def test_the_command_prints_a_table_for_each_number_of_ranks(capsys):
    assert main(["slow-ranks", "--ranks", "2,4", "--steps", "100"]) == 0
    output = capsys.readouterr().out
    assert "2 ranks" in output and "4 ranks" in output
    console = Console(file=io.StringIO(), width=100)
    slow_ranks.run(slow_ranks.SlowRanksOptions((4,), 100, 0), console)
    lines = console.file.getvalue().splitlines()
    (line,) = [line for line in lines if "all, each step" in line]
    seconds = slow_ranks.slow_in(4, 100, 0)["10 % jitter"]
    assert f"{slow_ranks.for_all(seconds):.2f}" in line
