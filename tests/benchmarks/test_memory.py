"""`benchmarks memory`: each way to shard is measured in processes of its own."""

import io

import pytest
from rich.console import Console

from benchmarks import memory


@pytest.mark.multiprocess
@pytest.mark.exhaustive(
    "benchmarks/test_checkpoint_cost.py::test_one_checkpoint_is_timed_among_the_steps_of_a_fit"
)
def test_each_way_to_shard_has_a_row(monkeypatch):
    assert memory.SHARDS == ("none", "optimizer", "gradients", "parameters")
    monkeypatch.setattr(memory, "SHARDS", ("none", "parameters"))  # a cluster costs 15 s of a core
    console = Console(file=io.StringIO(), width=120)
    assert memory.run(memory.MemoryOptions(model="small", rounds=1, steps=2), console) == 0
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("\u2502")]
    assert [row.split("\u2502")[1].strip() for row in rows] == ["none", "parameters"]
