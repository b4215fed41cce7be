"""The table and the picture of runs that are recorded, all of them or some."""

import dataclasses
import io

import pytest
from rich.console import Console
from sweep_records import finish, outcome

from benchmarks.convergence.convergence_options import ConvergenceOptions
from benchmarks.convergence.plot import _floor, draw
from benchmarks.convergence.report import markdown, mix, rich_table, rows, summarize

OPTIONS = ConvergenceOptions("mlp", batches=(64, 4096), optimizers=("sgd", "lamb"))


def accuracy_of(run):
    if run.optimizer == "sgd" and run.batch == 4096:
        return None
    base = 0.9 if run.batch == 64 else 0.89
    best = 0.02 if run.batch == 64 else 0.016
    return base + 0.001 * run.seed - (0.1 if run.learning_rate != best else 0)


FINISHED = finish(OPTIONS, accuracy_of)


def cells_without(unwanted):
    kept = {run: result for run, result in FINISHED.items() if not unwanted(run)}
    return summarize(OPTIONS, kept)


def test_a_cell_has_mean_spread_difference_and_rate():
    header, sgd, lamb = rows(OPTIONS, summarize(OPTIONS, FINISHED))
    assert header == ["optimizer", "64", "4,096"]
    assert sgd == ["sgd", "90.10 ± 0.10; rate 0.02", "diverged; rate 1.28"]
    assert lamb == ["lamb", "", "89.10 ± 0.10 (-1.00); rate 0.016"]


def test_fewer_seeds_and_rates_that_are_not_final_are_marked():
    assert rows(OPTIONS, cells_without(lambda run: run.seed == 2))[2][2] == (
        "89.05 ± 0.05 (-1.00); rate 0.016; 2 of 3 seeds"
    )
    early = cells_without(
        lambda run: run.optimizer == "lamb" and (run.seed or run.learning_rate < 0.01)
    )
    assert rows(OPTIONS, early)[2][2] == "89.00 (-1.10); rate 0.016; not final"


def test_a_rate_at_the_end_of_what_may_be_tried_is_marked():
    growing = finish(OPTIONS, lambda run: 0.5 + min(run.learning_rate, 0.4))
    lamb = rows(OPTIONS, summarize(OPTIONS, growing))[2][2]
    assert lamb.endswith("rate 0.512, the last tried")


def test_the_versions_of_all_runs_are_stated():
    text = markdown(OPTIONS, summarize(OPTIONS, FINISHED))
    assert text.endswith("Trained with tfdp 0, tensorflow 0, keras 0, numpy 0.\n")
    run = OPTIONS.run("lamb", 4096, 0.016, 2)
    other = dataclasses.replace(FINISHED[run], versions={"keras": "1"})
    text = markdown(OPTIONS, summarize(OPTIONS, FINISHED | {run: other}))
    assert "keras 0 and 1" in text


def test_seeds_that_diverged_are_counted():
    some = dict(FINISHED)
    some[OPTIONS.run("lamb", 4096, 0.016, 2)] = outcome(None)
    assert "1 of 3 diverged" in rows(OPTIONS, summarize(OPTIONS, some))[2][2]


def test_nothing_is_a_table_too():
    assert rows(OPTIONS, summarize(OPTIONS, {}))[1:] == [["sgd", "-", "-"], ["lamb", "", "-"]]


def test_the_mix_of_replicas_and_accumulation_is_stated():
    assert mix(OPTIONS) == "64 = 2 replicas x 32; 4,096 = 2 replicas x 512 x 4 accumulated"


def test_markdown_states_what_it_was_measured_by():
    text = markdown(OPTIONS, summarize(OPTIONS, FINISHED))
    lines = text.splitlines()
    assert "| lamb |  | 89.10 ± 0.10 (-1.00); rate 0.016 |" in lines
    assert lines[3] == "|---|---:|---:|"
    for part in ("20 epochs", mix(OPTIONS), "weight decay 0.01", "decay of power 1", "tuned at"):
        assert part in text


def test_the_terminal_shows_the_same_cells():
    console = Console(file=io.StringIO(), width=160)
    console.print(rich_table(OPTIONS, summarize(OPTIONS, FINISHED)))
    shown = console.file.getvalue()
    assert "89.10 ± 0.10 (-1.00)" in shown and "diverged" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "unwanted",
    [
        lambda run: False,
        lambda run: run.seed > 0,
        lambda run: run.batch == 64,
        lambda run: run.optimizer == "lamb",
        lambda run: run.optimizer == "sgd",
    ],
    ids=["all", "one seed", "no base", "no lamb", "only lamb"],
)
def test_a_picture_is_drawn_of_all_and_of_some(tmp_path, unwanted):
    path = tmp_path / "x.png"
    draw(OPTIONS, cells_without(unwanted), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("means", "floor"),
    [
        ([90.0, 89.0, 86.0], 84.0),
        ([90.0, 86.0, 10.0, 10.0], 84.0),
        ([44.0, 34.0, 24.0], 14.0),
        ([90.0], 89.0),
        ([], -1.0),
    ],
    ids=["near", "two failed", "falling by steps", "one", "none"],
)
def test_the_lower_edge_is_below_all_but_those_under_a_gap(means, floor):
    assert _floor(means) == floor
