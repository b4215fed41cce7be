"""`benchmarks slow-ranks`: its cells, and the table of two ranks."""

import io

import pytest
from rich.console import Console

from benchmarks import slow_ranks


def test_one_rank_is_slow_in_each_kind():
    options = slow_ranks.SlowRanksOptions(ranks=3, step_ms=10.0, pause_every=7)
    slow, pausing = options.kinds.values()
    assert slow == ([0.01, 0.01, 0.02], [0, 0, 0])
    assert pausing == ([0.01, 0.01, 0.01], [0, 0, 7])


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(620)
def test_the_command_prints_what_each_synchronization_reaches(monkeypatch):
    every = (slow_ranks.ALONE, "Asynchronous(2, staleness=100)")
    monkeypatch.setattr(slow_ranks, "SYNCHRONIZATIONS", every)
    console = Console(file=io.StringIO(), width=150)
    options = slow_ranks.SlowRanksOptions(
        ranks=2, steps=4, step_ms=1.0, pause_seconds=0.01, pause_every=2
    )
    assert slow_ranks.run(options, console) == 0
    output = console.file.getvalue()
    assert output.count("each alone: ") == output.count("staleness=100): ") == 2
    rows = [line for line in output.splitlines() if "│" in line]
    assert len(rows) == 2 and "failed" not in output
