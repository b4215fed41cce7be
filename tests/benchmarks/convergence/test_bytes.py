"""`benchmarks accuracy-by-bytes`: what it runs, and what its table and picture say."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console
from sweep_records import finish

from benchmarks.convergence.bytes_options import STRATEGIES, BytesOptions, strategies_of
from benchmarks.convergence.bytes_report import by_strategy, rows, show_bytes
from benchmarks.convergence.models import build_model
from benchmarks.convergence.recipes import make_optimizer
from benchmarks.convergence.runs import from_json, to_json
from benchmarks.convergence.splits import CONTEXT
from benchmarks.convergence.sweep import needed
from benchmarks.sending import arguments_of

INT8 = STRATEGIES.index("compression=ErrorFeedback(Int8())")
DILOCO = STRATEGIES.index("synchronization=DiLoCo(50)")


def finished(options, accuracies, sent):
    """All runs of a sweep, with an accuracy and bytes for each strategy."""
    done = finish(options, lambda run: accuracies[run.strategy])
    return {
        run: dataclasses.replace(outcome, bytes_sent=sent[run.strategy])
        for run, outcome in done.items()
    }


@pytest.fixture
def options(tmp_path):
    return BytesOptions(
        "cnn", only=(INT8, DILOCO), output=tmp_path / "x.png", table=tmp_path / "x.md"
    )


ACCURACIES = {"": 0.9, STRATEGIES[INT8]: 0.89, STRATEGIES[DILOCO]: None}
SENT = {"": 40_000_000, STRATEGIES[INT8]: 10_000_000, STRATEGIES[DILOCO]: 1_000_000}


def test_every_strategy_is_one_that_can_be_written():
    for words in (*STRATEGIES, *strategies_of("transformer-one-hot")):
        assert arguments_of(words).keys() <= {"compression", "synchronization"}


def test_compressions_reach_the_tensors_of_a_small_transformer():
    model = build_model("transformer-one-hot", (CONTEXT,), 84)
    for words in strategies_of("transformer-one-hot"):
        compression = arguments_of(words).get("compression")
        if compression is None or words.startswith("compression=Cast"):
            continue
        taken = compression.takes(model.trainable_variables)
        sizes = [int(np.prod(variable.shape)) for variable in model.trainable_variables]
        assert sum(np.multiply(sizes, taken)) > 0.97 * sum(sizes), words


def test_the_optimizer_may_be_another_one():
    options = BytesOptions("transformer-one-hot", optimizer="nesterov", only=(0, 22))
    assert options.cells == (("",), (STRATEGIES[22],))
    assert {run.optimizer for run in needed(options, {})} == {"nesterov"}


def test_the_first_runs_are_of_whole_gradients_and_each_strategy_has_rates_of_its_own(options):
    first = needed(options, {})
    assert [run.strategy for run in first] == [w for w in ACCURACIES for _ in range(3)]
    by_strategy = {run.strategy: run.learning_rate for run in reversed(first)}
    assert by_strategy[STRATEGIES[DILOCO]] == 0.25 * by_strategy[""]
    assert {(run.batch, run.micro_batch, run.optimizer) for run in first} == {
        (128, 128, "nesterov")
    }


def test_a_compression_with_a_momentum_goes_with_sgd_alone():
    corrected = [words for words in STRATEGIES if "MomentumCorrection" in words]
    assert len(corrected) == 2
    assert {(words,) for words in corrected} <= {*BytesOptions("cnn").cells}
    adam = {words for (words,) in BytesOptions("transformer").cells}
    assert adam == {*STRATEGIES} - {*corrected}
    assert make_optimizer("nesterov", 0.1, 10, 1, momentum=0.0).momentum == 0


def test_the_table_has_bytes_accuracy_and_what_diverged(options):
    cells = by_strategy(options, finished(options, ACCURACIES, SENT))
    whole, int8, diloco = rows(options, cells)
    assert whole[:5] == ["whole gradients", "40.0", "1.0 x", "90.00 ± 0.00", ""]
    assert int8[:5] == ["ErrorFeedback(Int8())", "10.0", "4.0 x", "89.00 ± 0.00", "-1.00"]
    assert diloco[1:4] == ["", "", "(3 of 3 diverged)"]


def test_what_is_not_finished_is_said(options):
    (whole, *_) = rows(options, by_strategy(options, {}))
    assert whole[1:] == ["", "", "", "", ""]
    some = finished(options, ACCURACIES, SENT)
    del some[next(run for run in some if run.strategy == "" and run.seed == 2)]
    assert rows(options, by_strategy(options, some))[0][5].endswith(", 2 of 3 seeds")


def test_table_and_picture_are_written(options):
    console = Console(file=io.StringIO(), width=100)
    show_bytes(options, finished(options, ACCURACIES, SENT), console)
    assert "| `ErrorFeedback(Int8())` | 10.0 | 4.0 x |" in options.table.read_text()
    assert options.output.stat().st_size > 0
    assert "Picture:" in console.file.getvalue()


def test_replicas_are_processes_where_it_is_processes_that_are_late():
    engines = {run.strategy: run.engine for run in needed(BytesOptions("cnn"), {})}
    assert engines.pop("synchronization=Asynchronous(16)") == "tensorflow"
    assert engines.pop("synchronization=BackupWorkers(1)") == "mpi"
    assert set(engines.values()) == {None}


def test_older_lines_of_results_lack_what_came_later():
    options = BytesOptions("cnn", only=(0,))
    run, outcome = next(iter(finish(options, lambda run: 0.5).items()))
    content = to_json(run, outcome)
    for name in ("strategy", "bytes_sent", "dropped_examples", "staleness"):
        del content[name]
    assert from_json(content) == (run, outcome)
