"""`benchmarks plan`: what it starts, what it keeps, and how it judges predictions."""

import io
import itertools
import json
import pathlib

import pytest
from rich.console import Console

from benchmarks.plan import cells, command, fitting, published
from benchmarks.plan.cells import Group
from benchmarks.plan.command import PlanCellsOptions
from benchmarks.plan.fitting import Cell, Fit
from tfdp.tools.bench.child_process import ChildFailure
from tfdp.tools.prediction import GradientTensor, Workload
from tfdp.tools.prediction.cluster_model import ENGINES, EngineCosts

WORK = Workload((GradientTensor((1000, 1000)),), 0.002, 0.004, 0.001, batch=2, slots=1)
ALONE = dict.fromkeys(("dense", "convolutional"), WORK)
TRUE = Fit(EngineCosts(3e-4, 2e-4, 0.9e-9, 0.95), 1.5)


def made_cells():
    """Cells whose steps are what the model says with other costs than the search begins with."""
    blank = [
        Cell(Group(places, rate, sending), model, topology, (1.0,))
        for places in ("0,1", "0,1,2,3")
        for rate in (50, 1000)
        for sending in cells.SENDINGS[:2]
        for model in ALONE
        for topology in ("native", "tree")
    ]
    return [
        Cell(one.group, one.model, one.topology, (fitting.predicted(one, ALONE, TRUE),))
        for one in blank
    ]


def test_costs_are_fitted_to_other_models_on_other_hosts():
    every = made_cells()
    rows = list(fitting.held_back(every, ALONE))
    assert len(rows) == len(every)
    for cell, seconds in rows:
        assert seconds == pytest.approx(cell.median, rel=0.05)


@pytest.mark.slow
def test_the_costs_of_the_code_are_those_that_the_committed_cells_give():
    """None of them can be changed by a tenth to predict the cells better."""
    folder = pathlib.Path(__file__).parents[2] / "docs" / "plan"
    every = fitting.cells(cells.read(folder / "cells.jsonl"))
    alone = fitting.read_alone(folder / "alone.json")
    engine = ENGINES["tensorflow"]
    at = [engine.operation_seconds, engine.step_seconds, engine.rate_share, 1.79]
    least = fitting.loss_of(fitting.fit_of(at), every, alone)
    for index, times in itertools.product(range(len(at)), (0.9, 1.1)):
        other = [value * (times if place == index else 1) for place, value in enumerate(at)]
        assert fitting.loss_of(fitting.fit_of(other), every, alone) > least


def test_the_summary_counts_what_is_within_fifteen_percent():
    every = made_cells()[:4]
    rows = [
        (cell, cell.median * times) for cell, times in zip(every, (1, 1.14, 0.86, 1.2), strict=True)
    ]
    assert command.summary(rows)[0].startswith("Within 15 %: 3 of 4 cells (75%)")
    assert command.grid(rows) == [
        "| model | hosts | 50 Mbit/s |",
        "|---|---|---|",
        "| convolutional | 2 | 1 of 2, 17% |",
        "| dense | 2 | 2 of 2, 7% |",
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(command.cells_table(rows))
    assert console.file.getvalue().count("*") == 1


def test_finished_groups_are_kept_and_not_measured_again(tmp_path, monkeypatch):
    path, started = tmp_path / "cells.jsonl", []
    (tmp_path / "alone.json").write_text("{}")
    wanted = list(cells.groups())

    def measure(group, timeout_seconds):
        started.append(group)
        if group == wanted[1]:
            return ChildFailure("python -m x", "exited with status 1", "[the cause]")
        return a_record(group, 1.0, 1.1, 1.2)

    monkeypatch.setattr(command.cells_, "measure", measure)
    options = PlanCellsOptions(results=path)
    console = Console(file=io.StringIO())
    assert command._measured(options, console) == 1
    assert started == wanted and "[the cause]" in console.file.getvalue()
    started.clear()
    command._measured(options, console)
    assert started == [wanted[1]]


def a_record(group, *seconds):
    cells_ = [{"model": "dense", "topology": "tree", "seconds": list(seconds)}]
    return {"group": vars(group), "links": None, "cells": cells_}


def test_groups_never_measured_come_first_and_then_those_that_spread_most():
    first, second, *others = cells.groups()
    records = [a_record(first, 1.0, 1.1, 1.2), a_record(second, 1.0, 2.0, 3.0)]
    assert list(cells.left(records, 1)) == others
    again = list(cells.left(records, 2))
    assert again == [*others, second, first, *others]
    records.append(records[1])
    assert list(cells.left(records, 2)) == [*others, first, *others]
    assert list(cells.left(records, 3))[len(others) :] == [second, first, *others, first, *others]


def test_of_several_rounds_the_quietest_counts():
    group = next(cells.groups())
    records = [a_record(group, 1.0, 2.0, 3.0), a_record(group, 2.5, 2.6, 2.7)]
    assert [cell.median for cell in fitting.cells(records)] == [2.6]


def test_a_line_that_is_none_is_named(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps({"group": {"places": "0,1"}}) + "\n")
    with pytest.raises(ValueError, match="line 1 of"):
        cells.read(path)


def test_a_group_starts_its_ranks_on_hosts_with_its_rate(monkeypatch):
    built, started = [], []

    class Hosts:
        def __enter__(self):
            return ["h0", "h1", "h2"]

        def __exit__(self, *error):
            pass

    def hosts(*words):
        built.append(words)
        return Hosts()

    def run(module, words, timeout_seconds, prefix):
        started.append(words)
        return {"links": None, "cells": []}

    monkeypatch.setattr(cells.hosts, "hosts", hosts)
    monkeypatch.setattr(cells, "run_for_json", run)
    record = cells.measure(Group("0,1,2", 200, ""), 9.0)
    assert built == [(3, "200mbit", "50kb")]
    assert "h0,h1,h2" in started[0] and "--probe" in started[0]
    assert "native,direct,halving_doubling,tree" in started[0]
    assert record["group"] == {"places": "0,1,2", "rate": 200, "sending": ""}


def test_fused_gradients_keep_their_bytes_and_their_order():
    tensors = [GradientTensor((10,), work=float(n)) for n in range(5)]
    found = published.fused(tensors, 80)
    assert [one.elements for one in found] == [10, 20, 20]
    assert [one.work for one in found] == [0.0, 3.0, 7.0]


def test_published_efficiency_falls_with_slower_links_and_more_gpus():
    vgg = published.PUBLISHED[2]
    large = (
        GradientTensor((1000, 1000), 10.0),
        GradientTensor((25_000, 4_000), 1.0),
        GradientTensor((4_000, 4_000), 1.0),
    )
    found = [published.predicted(vgg, large, ranks).efficiency for ranks in (1, 4, 64, 512)]
    assert found == sorted(found, reverse=True) and found[0] > 0.99
